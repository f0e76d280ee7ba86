"""Agents: settings become capabilities, hooks and a model.

Start at `agents.py`, which turns settings into capabilities. `models.py` creates a tenant's models. Imports config,
policy and telemetry, but nothing of tool calls and runs.
"""
