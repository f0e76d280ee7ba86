"""Generated stubs of the private contract; see proto/sandbox/v1."""
