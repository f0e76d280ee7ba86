"""Building blocks without knowledge of tenants, calls or policies: time, background tasks, retry, paging, printing.

Start at `background.py`. Imports gateway layers below 2, agent and sandbox.
"""
