"""The path of every tool call.

Start at `tool_calls.py`. Imports gateway layers below 12, agent, airlock and sandbox.
"""
