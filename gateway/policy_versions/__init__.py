"""Policies in force: applied versions, their history, policy files, and replay against recorded calls.

Start at `policies.py`, which every gateway follows; `policy_check.py` checks a policy before it comes into force.
Imports gateway layers below 8 and agent.
"""
