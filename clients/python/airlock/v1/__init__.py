"""Messages of the public contract, generated from proto/gateway/v1; servicers and field rules are in gateway.v1."""
