"""`airlock` as a sandbox backend of deepagents."""
