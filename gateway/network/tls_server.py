"""Opens a client's TLS on streams whose first bytes were read already, to see which server it wants."""

import asyncio
import ssl
from typing import cast

from gateway.network.http_client import PIECE_BYTES, Streams


class _TlsWriter(asyncio.StreamWriter):
    """Keeps the writer below, which would close the transport they share once nothing refers to it."""

    below: asyncio.StreamWriter


async def accept_tls(client: Streams, first: bytes, context: ssl.SSLContext, *, handshake_s: float) -> Streams:
    """Do the server's part of the handshake and return the streams inside; those given must not be used again.

    Raises OSError (ssl.SSLError, ConnectionError, TimeoutError) if the handshake fails; then the connection is closed.
    """
    reader, writer = client
    loop = asyncio.get_running_loop()
    transport = cast(asyncio.Transport, writer.transport)
    transport.pause_reading()
    reader.feed_eof()
    first += await reader.read()  # what arrived after `first`
    transport.pause_reading()
    inside = asyncio.StreamReader(PIECE_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(inside, loop=loop)
    starting = asyncio.create_task(
        loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=handshake_s)
    )
    try:
        await asyncio.sleep(0)  # its protocol is set
        await asyncio.sleep(0)  # and connected; the socket is read from the next round on
        _feed(transport.get_protocol(), first)
        tls = await starting
    finally:
        starting.cancel()
    if tls is None:
        raise ConnectionResetError("the client left during the handshake")
    protocol.connection_made(tls)
    wrapped = _TlsWriter(tls, protocol, inside, loop)
    wrapped.below = writer
    return inside, wrapped


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    assert isinstance(protocol, asyncio.BufferedProtocol)  # noqa: S101 - what start_tls has set
    while data:
        room = memoryview(protocol.get_buffer(len(data)))
        piece = data[: len(room)]
        room[: len(piece)] = piece
        protocol.buffer_updated(len(piece))
        data = data[len(piece) :]
