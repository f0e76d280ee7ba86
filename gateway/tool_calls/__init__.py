"""The path of every tool call."""
