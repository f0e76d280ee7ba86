"""Approvals: a rule asks, a person answers, and a grant answers for the next calls.

Start at `approver.py`, which a call waits at; `approvals.py` lists and answers, `grant_hook.py` applies grants.
Imports tenancy, policy and storage.
"""
