"""The end of data: retention by age, and erasure of a thread or a tenant.

Start at `retention.py` and `erasure.py`. Imports gateway layers below 12, agent and sandbox.
"""
