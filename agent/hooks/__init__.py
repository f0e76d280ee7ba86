"""Hooks: code at fixed points of the loop that reads a run and changes it.

Start at `hook.py`, whose class `Hook` you subclass; `engine.py` calls hooks in order, and `guard.py` checks what they
return. Imports agent layers below 6.
"""
