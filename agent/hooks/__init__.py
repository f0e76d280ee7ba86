"""Hooks: the points of the loop at which code may look at a run and change it.

`hook.py` is the base class to derive from; `engine.py` calls hooks in order, and `guard.py` checks what they return.
Imports the agent's vocabulary (state, messages, verdict), no tool.
"""
