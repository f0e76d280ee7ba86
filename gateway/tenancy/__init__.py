"""Tenants, their quotas, and how much each may have in progress. Start at `tenants.py`."""
