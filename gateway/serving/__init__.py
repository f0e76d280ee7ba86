"""Serving: processes, listening, and the edge that every RPC passes."""
