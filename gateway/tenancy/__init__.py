"""Tenants, their quotas, and how much each may have in progress. Start at `tenants.py`.

Imports gateway layers below 9 and sandbox.
"""
