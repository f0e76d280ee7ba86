"""A daemon's socket whose answers a test writes, honest or hostile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.client.channel import Channel
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.v1 import channel_pb2 as pb


class Peer:
    """The daemon's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def frame(self) -> bytes:
        (length,) = struct.unpack(">I", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    async def input(self) -> pb.Input:
        return pb.Input.FromString(await self.frame())

    async def reply(self, **member: object) -> None:
        await self.raw(frame(**member))

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def hung_up(self) -> None:
        """Wait until the gateway has closed the connection."""
        while await self._reader.read(65536):
            pass


def frame(**member: object) -> bytes:
    """Return a Reply as it is on the wire."""
    body = pb.Reply(**member).SerializeToString()  # type: ignore[arg-type]
    return struct.pack(">I", len(body)) + body


Answer = Callable[[pb.Request, Peer], Awaitable[None]]


def always(**member: object) -> Answer:
    """Answer every request with the same reply."""

    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(**member)

    return answer


class FakeDaemon:
    """What reached it, and the channel that leads to it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.connections = 0
        self.requests: list[pb.Request] = []


@asynccontextmanager
async def fake_daemon(directory: Path, answer: Answer) -> AsyncIterator[FakeDaemon]:
    """Serve `answer` for each request; an answer that returns keeps the connection, one that raises closes it."""
    daemon = FakeDaemon(Channel(UnixAddress(directory)))
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        daemon.connections += 1
        peer = Peer(reader, writer)
        try:
            while True:
                request = pb.Request.FromString(await peer.frame())
                daemon.requests.append(request)
                await answer(request, peer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(connected, directory / SOCKET_NAME)
    try:
        yield daemon
    finally:
        daemon.channel.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
