"""Runs: hosting them, their logs and checkpoints, and taking them over.

Start at `runs.py` and `hosting.py`. Imports gateway layers below 13, agent and sandbox.
"""
