"""Small helpers that know nothing of tenants, calls or policies: time, background tasks, retry, paging, printing.

Imports gateway.errors alone.
"""
