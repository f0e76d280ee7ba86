"""Generated stubs of the public contract; see proto/gateway/v1."""
