"""Serving: processes, listening, and the edge that every RPC passes.

Start at `edge.py`. Imports gateway layers below 13, agent and sandbox.
"""
