"""The streamable HTTP transport of `mcp`, without sessions of its own: each request is served by itself.

Tool calls may be answered by a stream of events, with progress, and with comments that keep the connection of a long
call open. Other requests of revisions up to 2025-11-25 are answered by one JSON document: clients limit the size of an
event.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from gateway.http.app import Receive, Scope, Send
from gateway.http.calls import BODY_LIMIT_BYTES
from gateway.mcp.peer import PEER, Peer
from gateway.mcp.server import Context, make_server


class Transport:
    """Serves requests of all revisions while `running`."""

    def __init__(self) -> None:
        # At the level info it reports each request.
        logging.getLogger("mcp").setLevel(logging.WARNING)
        make = partial(
            StreamableHTTPSessionManager,
            make_server(_peer_of),
            stateless=True,
            max_request_body_size=BODY_LIMIT_BYTES,
        )
        self._streamed, self._whole = make(), make(json_response=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._streamed.run(), self._whole.run():
            yield

    async def handle(self, scope: Scope, receive: Receive, send: Send, *, streamed: bool) -> None:
        """Answer a request whose scope has a Peer."""
        manager = self._streamed if streamed else self._whole
        await manager.handle_request(scope, receive, send)


def _peer_of(ctx: Context) -> Peer:
    request: Any = ctx.request
    peer: Peer = request.scope[PEER]
    return peer
