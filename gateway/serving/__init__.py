"""How it is served: processes, listening, and the edge that every RPC goes through."""
