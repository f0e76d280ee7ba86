"""Subagents: their tools and budgets, the usage that a family shares, and background work.

Start at `capability.py`. Imports agent layers below 12.
"""
