"""Writing and reading the audit: entries, pages, exports, verification and anchors.

Start at `audit.py`. Imports gateway layers below 10, agent and airlock.
"""
