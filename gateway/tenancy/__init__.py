"""Tenants: who they are, their quotas, and what each may have in flight.

Start at `tenants.py`. Imports policy versions, agents and storage.
"""
