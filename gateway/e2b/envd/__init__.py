"""Generated stubs of the protocol of envd, the agent in E2B's sandboxes; see proto/gateway/e2b/envd."""
