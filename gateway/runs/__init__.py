"""Runs: hosting them, their logs and checkpoints, and taking them over."""
