"""API keys, scopes, and how a caller is displayed and recorded. Start at `keys.py`; gateway/identity checks them.

Imports gateway layers below 3.
"""
