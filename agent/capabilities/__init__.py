"""Capabilities: small bundles of hooks and tools, one file each."""
