"""Hooks: code at fixed points of the loop that reads a run and changes it.

Derive from the class in `hook.py`; `engine.py` calls hooks in order, and `guard.py` checks what they return.
"""
