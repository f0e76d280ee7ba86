"""An MCP server over HTTPS on loopback, made with the official package, that notes what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
import uvicorn
from mcp.server.mcpserver import Context, MCPServer


@dataclass
class McpSite:
    """Where it is; `authorizations` are the headers of that name, `cancelled` the calls that were cancelled."""

    port: int = 0
    authorizations: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/mcp"


@contextlib.contextmanager
def mcp_site(directory: Path, authority: trustme.CA, **options: Any) -> Iterator[McpSite]:
    """Serve until the block ends; `options` are those of the package's application."""
    site = McpSite()
    application = _application(site, **options)
    certificate = authority.issue_cert("localhost")
    listening = socket.create_server(("127.0.0.1", 0))
    site.port = listening.getsockname()[1]
    pem = directory / f"mcp-site-{site.port}.pem"  # of this site alone: its thread reads it while others start
    pem.write_bytes(certificate.private_key_and_cert_chain_pem.bytes())
    config = uvicorn.Config(application, ssl_certfile=str(pem), log_level="critical", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield site
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()


def _application(site: McpSite, **options: Any) -> Any:
    server = MCPServer("tracker", log_level="CRITICAL")

    @server.tool()
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool()
    async def authorization() -> str:
        """Return the header of the request, as a careless server does."""
        return site.authorizations[-1]

    @server.tool()
    async def slow(context: Context) -> str:
        """Take long."""
        await context.report_progress(1, 3, "step")
        try:
            await asyncio.sleep(60)
        except BaseException:
            site.cancelled.append("slow")
            raise
        return "done"

    @server.tool()
    async def huge() -> str:
        """Say much."""
        return "x" * (20 * 2**20)

    inner = server.streamable_http_app(**options)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            site.authorizations.append(headers.get(b"authorization", b"").decode())
            site.paths.append(f"{scope['method']} {scope['path']}")
        await inner(scope, receive, send)

    return application
