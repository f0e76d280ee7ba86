"""Engines create sandboxes. Decorators around an engine's `create` add a pool and fair turns.

Start at `engine.py`, the protocol, then `docker/` (containers) or `local/` (this machine, for tests).
Imports sandbox layers below 6; engines do not import each other.
"""
