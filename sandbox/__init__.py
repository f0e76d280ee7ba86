"""Sandboxes: the Engine protocol, its engines, and the file systems. See ARCHITECTURE.md."""
