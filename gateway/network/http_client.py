"""The client's end of a relayed HTTP connection: heads are read whole and bounded, and its going away is noticed."""

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never, TypeVar

from agent.cancellation import ended
from gateway.network.http_request import bad, check_head

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PIECE_BYTES = 64 * 1024
ANSWER_PIECE_BYTES = 256 * 1024
"""All that asyncio has received at once."""

_T = TypeVar("_T")
_HEAD_END = re.compile(rb"\n\r?\n")
_LINGER_S = 1.0
_LINGER_BYTES = 1024 * 1024


class ClientGone(Exception):
    """The client closed the connection, or its end of it: as most servers, we take both for leaving."""


@dataclass(frozen=True)
class RelayLimits:
    """`head_s`: for the head of a request, once it began. `idle_s`: without a byte either way, and between requests."""

    head_s: float = 30.0
    idle_s: float = 300.0
    head_bytes: int = 64 * 1024


class Client:
    """Wraps the client's streams; `buffer` holds what was read and not yet used."""

    def __init__(self, streams: Streams, first: bytes, limits: RelayLimits) -> None:
        self.reader, self.writer = streams
        self.buffer = bytearray(first)
        self._limits = limits

    async def fill(self) -> None:
        """Wait for more bytes. Raises ClientGone."""
        try:
            data = await self.reader.read(PIECE_BYTES)
        except OSError as error:
            raise ClientGone from error
        if not data:
            raise ClientGone
        self.buffer += data

    def take(self, count: int | None = None) -> bytes:
        """Return the first bytes of the buffer, or all."""
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    async def read_head(self) -> bytes:
        """Return the head of the next request, its empty line too. Raises Refused, and ClientGone also if none came."""
        try:
            async with asyncio.timeout(self._limits.idle_s):
                while not self.buffer:
                    await self.fill()
        except TimeoutError as error:
            raise ClientGone from error
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = self.take(await self._head_end())
        except TimeoutError as error:
            raise bad("the head of the request did not arrive in time", 408) from error
        check_head(head)
        return head

    async def _head_end(self) -> int:
        searched = 0
        while True:
            while self.buffer.startswith(b"\r\n"):  # what old clients send after a body
                del self.buffer[:2]
            found = _HEAD_END.search(self.buffer, searched)
            if (found.end() if found else len(self.buffer)) > self._limits.head_bytes:
                raise bad(f"the head of the request is longer than {self._limits.head_bytes} bytes", 431)
            if found:
                return found.end()
            searched = max(0, len(self.buffer) - 2)
            await self.fill()

    async def send(self, data: bytes) -> None:
        """Send with back-pressure, and give others their turn. Raises ClientGone."""
        try:
            self.writer.write(data)
            await self.writer.drain()
            await asyncio.sleep(0)
        except OSError as error:
            raise ClientGone from error

    async def watch(self) -> Never:
        """Raise ClientGone when it leaves. Reads ahead no more than a piece: behind that its end is not visible."""
        while len(self.buffer) < PIECE_BYTES:
            await self.fill()
        await asyncio.Event().wait()
        raise AssertionError  # unreachable

    async def attended(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what the work returns, while the client is there. Raises ClientGone."""
        return await first_of(work, self.watch())

    async def close(self) -> None:
        """Close, but let it read what was sent first: closing on unread bytes would take that back."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                if self.writer.can_write_eof():
                    self.writer.write_eof()
                left = _LINGER_BYTES
                while left > 0 and (data := await self.reader.read(PIECE_BYTES)):
                    left -= len(data)
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.idle_s):
                await self.writer.wait_closed()
        self.writer.transport.abort()


async def first_of(work: Coroutine[Any, Any, _T], watch: Coroutine[Any, Any, Never]) -> _T:
    """Return what the work returns, unless the watch raises first. Neither runs on."""
    task, watching = asyncio.create_task(work), None
    try:
        await asyncio.sleep(0)  # most work is done then
        if not task.done():
            watching = asyncio.create_task(watch)
            await asyncio.wait((task, watching), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() or watching is None else watching.result()
    finally:
        if watching is None:
            watch.close()
        if not task.done() or watching is not None:
            await ended(*filter(None, (task, watching)))
