"""Approvals: a rule asks, an approver answers, and a grant answers for later calls.

Start at `approver.py`, where a call waits and grants apply; `approvals.py` lists and resolves. Imports gateway layers
below 10, and agent.
"""
