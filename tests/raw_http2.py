"""A raw HTTP/2 connection to a gRPC server, for peers that no client library can be: it never grants any window."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_INITIAL_WINDOW_SIZE = 0x4
_HEADER_BYTES = 9


class RawConnection:
    """Makes calls, reads no answer's data, and answers SETTINGS and PING so that the server keeps the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next = 1
        self.answered: set[int] = set()
        """The streams that headers came for."""
        self.ended: set[int] = set()
        """The streams that the server ended."""
        self.changed = asyncio.Condition()

    def call(
        self,
        path: str,
        message: bytes | None = b"",
        *,
        metadata: Sequence[tuple[str, str]] = (),
        announced_bytes: int | None = None,
    ) -> int:
        """Begin a call and return its stream; with None for a message none is sent.

        With `announced_bytes` the message is the beginning of one of that size, whose rest never comes.
        """
        stream, self._next = self._next, self._next + 2
        fields = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "gateway"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        )
        self._send(_HEADERS, _END_HEADERS, stream, b"".join(_literal(name, value) for name, value in fields))
        if message is not None:
            size = len(message) if announced_bytes is None else announced_bytes
            whole = struct.pack("!BI", 0, size) + message
            self._send(_DATA, _END_STREAM if announced_bytes is None else 0, stream, whole)
        return stream

    async def flush(self) -> None:
        """Wait until what was sent is on its way."""
        await self._writer.drain()

    async def wait_ended(self, count: int) -> None:
        """Wait until the server has ended so many calls."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.ended) >= count)

    async def wait_answered(self, count: int) -> None:
        """Wait until headers have come for so many calls."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.answered) >= count)

    def _send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self._writer.write(struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload)

    def _greet(self, window_bytes: int) -> None:
        self._writer.write(_PREFACE)
        self._send(_SETTINGS, 0, 0, struct.pack("!HI", _INITIAL_WINDOW_SIZE, window_bytes))

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(_HEADER_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind in {_SETTINGS, _PING} and not flags & _ACK:
                    self._send(kind, _ACK, 0, payload if kind == _PING else b"")
                async with self.changed:
                    if kind == _HEADERS:
                        self.answered.add(stream)
                    if kind == _RST_STREAM or (kind in {_HEADERS, _DATA} and flags & _END_STREAM):
                        self.ended.add(stream)
                    self.changed.notify_all()


@contextlib.asynccontextmanager
async def raw_connection(
    address: str, *, window_bytes: int = 0, source: str | None = None
) -> AsyncIterator[RawConnection]:
    """Connect to HOST:PORT, from an address of this machine, granting `window_bytes` to each of the answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0) if source else None)
    connection = RawConnection(reader, writer)
    connection._greet(window_bytes)
    reading = asyncio.create_task(connection._read())
    try:
        yield connection
    finally:
        reading.cancel()
        writer.close()
        await asyncio.gather(reading, writer.wait_closed(), return_exceptions=True)


def _literal(name: str, value: str) -> bytes:
    """Return a header field of HPACK, not indexed and not compressed."""
    return b"\0" + b"".join(_text(part.encode("ascii")) for part in (name, value))


def _text(text: bytes) -> bytes:
    """Return a string with its length: an integer of a 7-bit prefix."""
    size, most = len(text), 127
    if size < most:
        return bytes((size,)) + text
    rest, coded = size - most, bytes((most,))
    while rest >= 1 << 7:
        coded += bytes(((rest & most) | 1 << 7,))
        rest >>= 7
    return coded + bytes((rest,)) + text
