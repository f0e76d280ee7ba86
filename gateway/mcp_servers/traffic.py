"""Limits on what a server may send, over any transport. They count only while requests are in progress.

If a server sends more, reading stops and its session ends. A session gets only the messages that it acts on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from agent.cancellation import ended
from sandbox.errors import SandboxError

MESSAGE_LIMIT_BYTES = 8 * 1024 * 1024
_BYTES = 16 * 1024 * 1024
# Each passes through the HTTP library, or is a request to the sandbox's daemon, however short it is.
_PIECES = 50_000
# The parser makes an object of each value, at once: what these marks may stand for takes some tenths of a second. Those
# within texts count too, as far as they are not escaped.
_MARKS, _COMMAS = 250_000, 500_000
_MESSAGES = 10_000
_REQUESTS = 100
_HEEDED = frozenset({"notifications/progress", "notifications/tools/list_changed", "notifications/cancelled"})
Incoming = SessionMessage | Exception
Out = MemoryObjectSendStream[Incoming]
"""Holds no message, so a slow session slows the reading."""
T = TypeVar("T")


class SentTooMuch(Exception):
    """A server sent more than it may; str() says what."""


class Traffic:
    """Counts what one server sends."""

    def __init__(self) -> None:
        self._wanted, self._unwanted = asyncio.Event(), asyncio.Event()
        self.problem = ""
        """Why the session cannot go on; "" for no known reason."""
        self._under_way = 0
        self._start_over()

    def _start_over(self) -> None:
        self._bytes = self._pieces = self._marks = self._commas = self._messages = self._requests = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request of ours as under way in this block."""
        if not self._under_way:
            self._start_over()
        self._under_way += 1
        self._unwanted.clear()
        self._wanted.set()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._wanted.clear()
                self._unwanted.set()

    async def while_wanted(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `read` does, as soon as it does while a request is under way; at other times it is cancelled."""
        while True:
            await self._wanted.wait()
            reading, idle = asyncio.create_task(read()), asyncio.create_task(self._unwanted.wait())
            try:
                await asyncio.wait({reading, idle}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    return await reading
            finally:
                await ended(reading, idle)

    def received(self, data: bytes) -> None:
        """Count a piece that was received, before any of it is parsed. Raises SentTooMuch."""
        self._pieces += 1
        if self._pieces > _PIECES:
            raise SentTooMuch(f"it sent more than {_PIECES:,} pieces for one call: more at a time are expected")
        self._bytes += len(data)
        if self._bytes > _BYTES:
            raise SentTooMuch(f"it sent more than {_BYTES // 2**20} MiB for one call")
        self._marks += data.count(b'"') - data.count(b'\\"') + data.count(b"[") + data.count(b"{")
        self._commas += data.count(b",")
        if self._marks > _MARKS or self._commas > _COMMAS:
            raise SentTooMuch("it sent more strings, lists or members than are read for one call")

    async def pass_on(self, messages: AsyncIterator[Incoming], out: Out, at_end: str = "") -> None:
        """Hand on the messages that the session acts on, then close `out`; `problem` is `at_end`, or an error."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with out:  # its end is the end of the session
                try:
                    await self._pass_on(messages, out)
                    self.problem = self.problem or at_end
                except (SentTooMuch, SandboxError) as error:
                    self.problem = self.problem or str(error)

    async def _pass_on(self, messages: AsyncIterator[Incoming], out: Out) -> None:
        async for incoming in messages:
            await asyncio.sleep(0)  # thousands may have arrived at once: others have their turn between them
            self._messages += 1
            if self._messages > _MESSAGES:
                raise SentTooMuch(f"it sent more than {_MESSAGES:,} messages for one call")
            if isinstance(incoming, Exception):
                continue  # no JSON-RPC message: a server that prints other text, or empty lines, to its output, say
            message = incoming.message
            if isinstance(message, JSONRPCNotification) and message.method not in _HEEDED:
                continue
            if isinstance(message, JSONRPCRequest):
                self._requests += 1
                if self._requests > _REQUESTS:
                    raise SentTooMuch(f"it sent more than {_REQUESTS} requests of its own for one call")
            await out.send(incoming)
