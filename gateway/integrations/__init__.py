"""Adapters for other frameworks, one file each, each an optional extra over the public client.

Imports gateway.client and gateway.errors only.
"""
