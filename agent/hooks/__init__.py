"""Hooks: code at fixed points of the loop that reads a run and changes it.

`hook.py` is the base class to derive from; `engine.py` calls hooks in order, and `guard.py` checks what they return.
Imports the agent's vocabulary (state, messages, verdict), no tool.
"""
