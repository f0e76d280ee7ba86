"""API keys and callers: what a key looks like, which scopes there are, and how a caller is shown and recorded.

Start at `keys.py`. Pure: the checks of credentials are in gateway/identity.
"""
