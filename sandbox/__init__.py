"""Sandboxes: the Engine protocol, its engines, and the file systems. See ARCHITECTURE.md.

Start at `sandbox.py` and `engines/engine.py`. Imports neither agent nor gateway.
"""
