"""The MCP server: a tenant's tools and a thread's files for clients of the Model Context Protocol.

Start at `face.py` for HTTP and at `stdio.py` for a process that a client starts. Both serve what `server.py` defines,
over a gateway.client.Client with the caller's credential, so that each call takes the tool path. The package `mcp` is
imported when the first request arrives: a gateway whose tenants do not use MCP has no cost from it. Imports gateway
layers below 16 and agent.

- `face`: the routes /mcp and /mcp/threads/THREAD: authentication, the body, and what of a session has no state.
- `authorization`: the answers to requests without a valid credential, and the metadata that names the issuers.
- `sessions`: session ids, which contain what they mean, and the calls in progress that a client may cancel.
- `transport`: the streamable HTTP transport of `mcp`.
- `stdio`: the stdio transport of `mcp`.
- `server`: the handlers of the protocol's methods.
- `peer`: who calls, and which thread it is about.
- `results`: results of tool calls and errors, as the protocol has them.
- `asking`: the answer to a call that needs an approval.
- `resources`: files of the sandbox as resources.
- `uris`: the URIs of these files.
- `approval_page`: what the URL of an approval shows.
"""
