"""Approvals: a rule asks, an approver answers, and a grant answers for later calls.

Start at `approver.py`, where a call waits; `approvals.py` lists and resolves, `grant_hook.py` applies grants. Imports
gateway layers below 10, and agent.
"""
