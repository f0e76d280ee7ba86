"""Writing and reading the audit: entries, pages, exports, verification and anchors."""
