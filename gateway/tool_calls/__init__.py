"""The one way of a tool call."""
