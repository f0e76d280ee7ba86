"""Generated from proto/gateway/v1: servicers of its services, and the rules of its fields. Messages: airlock.v1."""
