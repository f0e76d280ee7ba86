"""Agents: `agents.py` turns settings into capabilities, hooks and a model; `models.py` creates a tenant's models.

Start at `agents.py`. Imports gateway layers below 7 and agent.
"""
