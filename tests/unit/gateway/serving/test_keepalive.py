"""What the client's and the server's own options make of a connection on which nothing is said for long.

All times of both are taken a hundredth as long, and what goes over the wire is looked at frame by frame.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
import pytest

from airlock import wire
from gateway.serving.listening import server_options

_FASTER = 100
# Twice as many as a server forgives that takes them for too many.
_PINGS = 5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9
_PING, _GOAWAY, _ACK = 6, 7, 1


def _hurried(options: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    # Not how long an answer may take: this machine is as slow as ever.
    return [
        (name, max(value // _FASTER, 1) if name.endswith("_ms") and "timeout" not in name else value)
        for name, value in options
    ]


class Tap:
    """Forwards one connection, and counts the frames that a client and a server send of themselves."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self.address = ""
        self.pings = {"client": 0, "server": 0}
        self.goaways = 0
        self.connections = 0
        self._changed = asyncio.Event()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to_there = await asyncio.open_connection(self._host, int(self._port))
        pumps = (self._pump("client", reader, to_there, _PREFACE), self._pump("server", there, writer, b""))
        try:
            await asyncio.gather(*pumps)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            to_there.transport.abort()

    async def _pump(
        self, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, preface: bytes
    ) -> None:
        writer.write(await reader.readexactly(len(preface)))
        while True:
            header = await reader.readexactly(_HEADER_BYTES)
            writer.write(header + await reader.readexactly(int.from_bytes(header[:3])))
            self.goaways += header[3] == _GOAWAY
            self.pings[side] += header[3] == _PING and not header[4] & _ACK
            self._changed.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self._changed.clear()
                await self._changed.wait()


async def _silent(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    yield request
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def tapped(options: Iterable[tuple[str, Any]]) -> AsyncIterator[Tap]:
    """Run a server behind a tap until the block ends."""
    server = grpc.aio.server(options=list(options))
    handlers = {
        "Once": grpc.unary_unary_rpc_method_handler(_echo),
        "Silent": grpc.unary_stream_rpc_method_handler(_silent),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Silence", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tap = Tap(f"127.0.0.1:{port}")
    listening = await asyncio.start_server(tap.forward, "127.0.0.1", 0)
    tap.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        await server.stop(None)
        listening.close()


@pytest.fixture
async def tap() -> AsyncIterator[Tap]:
    """The gateway's options, hurried."""
    async with tapped(_hurried(server_options(shared=False))) as made:
        yield made


async def _echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


async def test_a_call_that_says_nothing_for_long_is_not_cut(tap: Tap) -> None:
    async with grpc.aio.insecure_channel(tap.address, options=_hurried(wire._OPTIONS)) as channel:
        call = channel.unary_stream("/test.Silence/Silent")(b"on")
        assert await call.read() == b"on"
        await tap.until(lambda: tap.goaways > 0 or call.done() or tap.pings["client"] >= _PINGS)
        assert (tap.goaways, call.done(), tap.connections) == (0, False, 1)
        assert tap.pings["client"] >= _PINGS


async def test_a_client_without_calls_keeps_its_connection(tap: Tap) -> None:
    async with grpc.aio.insecure_channel(tap.address, options=_hurried(wire._OPTIONS)) as channel:
        once = channel.unary_unary("/test.Silence/Once")
        assert await once(b"a") == b"a"
        await tap.until(lambda: tap.goaways > 0 or tap.pings["server"] >= _PINGS)
        assert await once(b"b") == b"b"
        assert (tap.goaways, tap.connections) == (0, 1)


async def test_a_client_that_pings_far_too_often_is_sent_away() -> None:
    # Hurried, a client sends a ping a second, and the server takes one in ten.
    async with (
        tapped(server_options(shared=False)) as tap,
        grpc.aio.insecure_channel(tap.address, options=_hurried(wire._OPTIONS)) as channel,
    ):
        call = channel.unary_stream("/test.Silence/Silent")(b"on")
        assert await call.read() == b"on"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert tap.goaways
