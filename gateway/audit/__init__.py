"""The audit: what is told, and how a chain is verified."""
