"""Bytes both ways between two streams, each way ending by itself: half-close is passed on where the transport can."""

import asyncio
from collections.abc import Callable

from agent.cancellation import ended
from gateway.network.http_client import PIECE_BYTES, Streams

_Pass = Callable[[bytes], bytes]


async def relay_raw(
    client: Streams,
    server: Streams,
    *,
    early: tuple[bytes, bytes],
    moved: Callable[[int, int], None],
    received: _Pass,
    flush: Callable[[], bytes],
) -> None:
    """Relay until both ways have ended, or one failed (OSError, or what `moved` raises). Closes neither.

    `early`: what was read already, from the client and the server. `received` and `flush` change the server's bytes.
    """

    def from_client(data: bytes) -> bytes:
        moved(len(data), 0)
        return data

    def from_server(data: bytes) -> bytes:
        moved(0, len(data))
        return received(data)

    ways = (
        asyncio.create_task(_copy(client[0], server[1], early[0], from_client, bytes)),
        asyncio.create_task(_copy(server[0], client[1], early[1], from_server, flush)),
    )
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
    finally:
        await ended(*ways)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, change: _Pass, flush: Callable[[], bytes]
) -> None:
    while data := data or await reader.read(PIECE_BYTES):
        writer.write(change(data))
        await writer.drain()
        data = b""
    writer.write(flush())
    await writer.drain()
    if not writer.can_write_eof():
        raise ConnectionAbortedError("TLS has no half-close: this ends both ways")
    writer.write_eof()
