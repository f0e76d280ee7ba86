"""Generated stubs of the protocol of envd, the agent in E2B's sandboxes; see proto/gateway/e2b/envd.

Start at `process_pb2.pyi`. Imports only protobuf.
"""
