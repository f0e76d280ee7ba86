"""Who calls: credentials, and what they are for."""
