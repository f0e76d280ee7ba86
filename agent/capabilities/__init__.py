"""Capabilities: bundles of hooks and tools, one module each, and the formats that they read.

Start at `capability.py`. Imports agent layers below 9.
"""
