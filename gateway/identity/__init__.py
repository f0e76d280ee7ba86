"""Authentication: API keys, tokens and client certificates, and what each may do.

Start at `auth.py`. Imports gateway layers below 10.
"""
