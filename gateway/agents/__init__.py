"""Agents: settings become capabilities, hooks and a model.

Start at `agents.py`, the one place where settings become capabilities. `models.py` makes a tenant's model driver.
Imports config, policy and telemetry; no tool call and no run.
"""
