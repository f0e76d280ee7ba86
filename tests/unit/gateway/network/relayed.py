"""A relay on loopback, servers behind it that do what a test says, and clients that send bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.network.http_client import RelayLimits, Streams
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Origin, ProxyRequest, Refused
from gateway.network.upstream import Exchange, PlainExchange

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A server on loopback: `heads` are the heads it read by `head`, `connections` how many it accepted."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self.connections = 0
        self.closed = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._handle(reader, writer)
        writer.close()
        self.closed.set()


@dataclass
class Gate:
    """An Upstream: hosts by name, denied where `denied` says, `exchange` for each request."""

    servers: dict[str, int]
    denied: Callable[[ProxyRequest], bool] = lambda _: False
    exchange: Callable[[ProxyRequest], Exchange | Awaitable[Exchange]] = PlainExchange
    judged: list[ProxyRequest] = field(default_factory=list)
    dialled: list[Origin] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    up: int = 0
    down: int = 0
    tls: dict[str, Any] = field(default_factory=dict)
    answer_to: Callable[[], Awaitable[None]] | None = None
    http2: Streams | None = None
    """The connection to a server that speaks it."""

    async def judge(self, request: ProxyRequest) -> Exchange:
        self.judged.append(request)
        if self.answer_to is not None:
            await self.answer_to()
        if request.origin.host not in self.servers or self.denied(request):
            origin = request.origin
            body = {"error": "policy_denied", "rule": "r", "reason": "no", "host": origin.host, "port": origin.port}
            raise Refused(403, body)
        exchange = self.exchange(request)
        return await exchange if isinstance(exchange, Awaitable) else exchange

    async def dial(self, origin: Origin) -> Streams:
        self.dialled.append(origin)
        try:
            return await asyncio.open_connection("127.0.0.1", self.servers[origin.host], **self.tls)
        except OSError as error:
            raise Refused(502, {"error": "bad_gateway", "reason": "connection refused"}) from error

    async def dial_http2(self, origin: Origin) -> tuple[Streams, bool]:
        if self.http2 is None:
            return await self.dial(origin), False
        self.dialled.append(origin)
        return self.http2, True

    def refused(self, refused: Refused, request: ProxyRequest | None) -> None:
        self.refusals.append(refused)

    def moved(self, up: int, down: int) -> None:
        self.up += up
        self.down += down


@dataclass
class Relay:
    """`gate`, and `port` of the relay; `ended` after a client's connection was served."""

    gate: Gate
    servers: dict[str, Server]
    port: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> bytes:
        """Send bytes, and return all that comes until the relay closes; only for what closes."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer


@asynccontextmanager
async def relayed(
    handlers: dict[str, Handler], *, origin: Origin | None = None, limits: RelayLimits | None = None, **gate: object
) -> AsyncIterator[Relay]:
    """Run servers by their hosts' names, and a relay before them."""
    tasks: set[asyncio.Task[None]] = set()
    async with AsyncExitStack() as stack:
        servers = {host: Server(handle) for host, handle in handlers.items()}
        for server in servers.values():
            listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            server.port = listening.sockets[0].getsockname()[1]
            stack.callback(listening.close)
        door = Gate({host: server.port for host, server in servers.items()}, **gate)  # type: ignore[arg-type]
        relay = Relay(door, servers)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            with suppress(asyncio.CancelledError):
                await relay_http((reader, writer), door, origin=origin, limits=limits or RelayLimits())
            relay.ended.set()

        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        relay.port = listening.sockets[0].getsockname()[1]
        stack.callback(listening.close)
        yield relay
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def head(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one answer that has a Content-Length: its head and its body."""
    start = await head(reader)
    length = next(int(line[15:]) for line in start.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return start, await asyncio.wait_for(reader.readexactly(length), 20)


def saying(*answers: bytes) -> Handler:
    """A server that reads a head without a body for each answer, and gives it; the last one again and again."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for given in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(given)
            await writer.drain()
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(answers[-1])

    return handle


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server whose answer's body is the request's head."""
    while True:
        start = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(start) + start)
        await writer.drain()


def closing(given: bytes, *, read: bool = True) -> Handler:
    """A server that answers once, then closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if read:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(given)
        await writer.drain()

    return handle
