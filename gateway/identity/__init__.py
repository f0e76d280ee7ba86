"""Authentication: API keys, tokens and client certificates, and what each may do."""
