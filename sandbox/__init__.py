"""Sandboxes: engines that create them, the daemon inside, the channel to it, and leases. See ARCHITECTURE.md.

Start at `sandbox.py` and `engines/engine.py`. Imports neither agent nor gateway.
"""
