"""Building blocks without knowledge of tenants, calls or policies: time, background tasks, retry, paging, printing."""
