"""The stdio transport: a process that an MCP client starts, and that calls a gateway over gRPC."""

from mcp.server.stdio import stdio_server

from gateway.client import Client
from gateway.mcp.peer import Peer
from gateway.mcp.server import make_server


async def serve_stdio(client: Client, thread: str) -> None:
    """Serve one client until its end of standard input is closed."""
    peer = Peer(client, thread)
    server = make_server(lambda _ctx: peer)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
