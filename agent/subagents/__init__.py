"""Subagents: their tools and budgets, the usage that a family shares, and background work."""
