"""Capabilities: bundles of hooks and tools, one module each, and the formats that they read.

Start at `todos.py`, a small one. Imports agent layers below 9.
"""
