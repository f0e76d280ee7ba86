"""Building blocks: clock, background tasks, retries, paging, printable text, hosts, the current tenant, heavy work.

Start at `background.py`. Imports gateway layers below 2, agent and sandbox.
"""
