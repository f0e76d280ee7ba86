"""Connections of tool code to the outside: each is judged, dialled and relayed by the gateway, and on record.

Nothing that arrives from a sandbox is trusted.

Start at `door.py`, which takes connections, and `connection.py`, which serves one. Imports gateway layers below 11,
agent and sandbox.
"""
