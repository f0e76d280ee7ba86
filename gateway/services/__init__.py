"""The servicers: each translates one proto service to calls of the packages below.

Start at `tool_service.py`. Imports gateway layers below 14, agent, airlock and sandbox.
"""
