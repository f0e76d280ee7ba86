"""Adapters for other frameworks, one file each, each an optional extra over the public client.

Imports gateway.client, gateway.errors and agent.tools.paths only. Start at `inspect_sandbox.py`.
"""
