"""Building blocks: clock, background tasks, retries, paging, printable text, the current tenant, heavy work in turns.

Start at `background.py`. Imports gateway layers below 2, agent and sandbox.
"""
