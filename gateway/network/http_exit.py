"""The requests of one client's HTTP connection, each judged, over connections to the outside that are on record."""

import asyncio
import socket

from gateway.network.client_bytes import ClientBytes
from gateway.network.decision import Target, refusal
from gateway.network.http_client import Streams
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Origin, ProxyRequest, Refused
from gateway.network.outgoing import Ended, Exits, Outgoing
from gateway.network.upstream import Exchange, PlainExchange

Tunnel = tuple[Outgoing, socket.socket]
"""A connection to the outside that is there already."""


async def serve_http(client: ClientBytes, exits: Exits, tunnel: Tunnel | None = None) -> None:
    """Serve a client that speaks HTTP to a proxy, in absolute form, or through its tunnel, to its end."""
    exit_ = HttpExit(exits, tunnel)
    first, client.rest = client.rest, b""
    streams = await asyncio.open_connection(sock=client.connection)
    origin = None if tunnel is None else Origin("http", tunnel[0].target.host, tunnel[0].target.port)
    try:
        await relay_http(streams, exit_, first=first, origin=origin)
    except asyncio.CancelledError:
        exit_.cut("cancelled")
        raise
    finally:
        await exit_.close()


class HttpExit:
    """Satisfies upstream.Upstream, for one client's connection."""

    def __init__(self, exits: Exits, tunnel: Tunnel | None = None) -> None:
        self._exits = exits
        self._judged: Outgoing | None = None
        self._dialled: Outgoing | None = None
        self._connection: socket.socket | None = None
        if tunnel is not None:
            self._dialled, self._connection = tunnel
        self._recording: set[asyncio.Task[None]] = set()
        self._task = asyncio.current_task()  # that of the client, which judge() and dial() need not run in

    async def judge(self, request: ProxyRequest) -> Exchange:
        target = Target(request.origin.host, request.origin.port, request.method, request.paths)
        dialled = self._dialled
        if dialled is None or (dialled.target.host, dialled.target.port) != (target.host, target.port):
            self._judged = self._exits.outgoing(target, self._task)
            await self._judged.decide()
        else:  # another request on the same connection to the outside
            self._judged = self._exits.request(target)
            await self._judged.decide()
            self._judged = None
        return PlainExchange(request)

    async def dial(self, origin: Origin) -> Streams:
        del origin  # that of the request judged last
        if self._connection is not None:
            connection, self._connection = self._connection, None
            return await asyncio.open_connection(sock=connection)
        if self._judged is None and self._dialled is not None:  # it was closed meanwhile
            again = self._exits.outgoing(self._dialled.target, self._task)
            again.decision = self._dialled.decision
            self._judged = again
        self._record(self._dialled)
        dialled, self._judged = self._judged, None
        self._dialled = dialled
        if dialled is None:
            raise RuntimeError("a request is judged before its server is dialled")
        return await asyncio.open_connection(sock=await dialled.dial())

    def refused(self, refused: Refused, request: ProxyRequest | None) -> None:
        one = self._judged
        if one is not None:
            one.refuse(refused)
            self._record(one)
            self._judged = None
        elif self._dialled is not None and request is not None:
            self._dialled.refuse(refused)

    def moved(self, up: int, down: int) -> None:
        one = self._dialled
        if one is None:
            return
        try:
            one.count_up(up)
            one.count_down(down)
        except Ended as ended:
            raise refusal(403, str(ended), "the limit of bytes of one connection is reached", one.target) from ended

    def cut(self, outcome: str) -> None:
        """Note how the open connection ended, unless that is known."""
        if self._dialled is not None:
            self._dialled.outcome = self._dialled.outcome or outcome

    async def close(self) -> None:
        """Record what is open."""
        self._record(self._judged)
        self._record(self._dialled)
        self._judged = self._dialled = None
        await asyncio.gather(*self._recording)

    def _record(self, one: Outgoing | None) -> None:
        if one is not None:
            task = asyncio.create_task(self._exits.ended(one))
            self._recording.add(task)
            task.add_done_callback(self._recording.discard)
