"""Engines create sandboxes. Decorators around an engine's `create` add a pool and fair turns.

Start at `engine.py`, the protocol, then `docker/` (containers), `kubernetes/` (Pods) or `local/` (this machine, for
tests). What the first two share is here: the handshake, the posture, and what holds every container.
Imports sandbox layers below 6; engines do not import each other.
"""
