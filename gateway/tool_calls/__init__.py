"""The path of every tool call.

Start at `tool_calls.py`. Imports gateway layers below 11, agent and sandbox.
"""
