"""The HTTP listener: one port beside gRPC that carries JSON, MCP and E2B's protocol over the same services.

Start at `listener.py`, then `app.py`. Imports gateway layers below its own; no face goes another way than the services.

- `listener`: the server, its socket and its TLS.
- `connections`: what one connection may cost before a request is complete.
- `app`: routes, the checks that hold for each request, and errors as problem documents.
- `calls`: calls of the services with the credential of an HTTP request.
- `problems`: errors as application/problem+json.
"""
