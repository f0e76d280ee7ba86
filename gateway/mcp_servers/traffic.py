"""Limits on what a server may send, over any transport. They count only while requests are in progress.

If a server sends more, reading stops and its session ends. A session gets only the messages that it acts on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from agent.cancellation import ended
from sandbox.errors import SandboxError

MESSAGE_LIMIT_BYTES = 8 * 1024 * 1024
_BYTES = 16 * 1024 * 1024
# Each passes through the HTTP library, or is a request to the sandbox's daemon, however short it is.
_PIECES = 50_000
# The parser makes an object of each value at once, which takes a tenth of a second or so for so many.
_PARTS_LIMIT = 100_000
# A string that the end of a piece cuts goes on in the next one; the end of a line ends it, as in all that is JSON.
_PARTS = re.compile(rb'"[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+(?:"|(?P<cut>\\?\Z))?|[\[{,]')
# What the library checks one by one, on the event loop: parts of content, tools, icons.
_CHECKED_LIMIT = 3_000
# These are free forms, and an object that is none has fewer fields than this.
_FREE = frozenset({"structuredContent", "_meta", "inputSchema", "outputSchema"})
_FIELDS = 16
_MESSAGES = 10_000
_REQUESTS = 100
_HEEDED = frozenset({"notifications/progress", "notifications/tools/list_changed", "notifications/cancelled"})
Incoming = SessionMessage | Exception
Out = MemoryObjectSendStream[Incoming]
"""Holds no message, so a slow session slows the reading."""
T = TypeVar("T")


class SentTooMuch(Exception):
    """A server sent more than it may; str() says what."""


class Texts:
    """The JSON texts of one answer, or of a program's output, which arrive in pieces."""

    def __init__(self) -> None:
        self._begun = b""  # of a string that goes on in the next piece

    def parts(self, piece: bytes) -> int:
        """Return the strings, commas, lists and objects that begin in a piece, as far as they may be read."""
        count, cut = -bool(self._begun), None
        for part in islice(_PARTS.finditer(self._begun + piece), _PARTS_LIMIT + 2):
            count += 1
            cut = part["cut"]
        self._begun = b"" if cut is None else b'"' + cut
        return count


class Traffic:
    """Counts what one server sends."""

    def __init__(self) -> None:
        self._wanted, self._unwanted = asyncio.Event(), asyncio.Event()
        self.problem = ""
        """Why the session cannot go on; "" for no known reason."""
        self._under_way = 0
        self._start_over()

    def _start_over(self) -> None:
        self._bytes = self._pieces = self._parts = self._messages = self._requests = 0

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

    def received(self, data: bytes, texts: Texts) -> None:
        """Count a piece of texts that was received, before any of it is parsed. Raises SentTooMuch."""
        self._pieces += 1
        if self._pieces > _PIECES:
            raise SentTooMuch(f"it sent more than {_PIECES:,} pieces for one call: more at a time are expected")
        self._bytes += len(data)
        if self._bytes > _BYTES:
            raise SentTooMuch(f"it sent more than {_BYTES // 2**20} MiB for one call")
        self._parts += texts.parts(data)
        if self._parts > _PARTS_LIMIT:
            raise SentTooMuch(f"it sent more than {_PARTS_LIMIT:,} strings, commas, lists and objects for one call")

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
                message = _to_answer(message)
            if isinstance(message, JSONRPCResponse) and _parts_checked(message.result) > _CHECKED_LIMIT:
                raise SentTooMuch(f"its answer has more than {_CHECKED_LIMIT:,} parts: ask it for fewer at a time")
            await out.send(SessionMessage(message, incoming.metadata))


def _to_answer(request: JSONRPCRequest) -> JSONRPCRequest:
    """Return a request that the library answers as it should this one, without a check of what it asks for."""
    method = "ping" if request.method == "ping" else "unsupported"
    return JSONRPCRequest(jsonrpc="2.0", id=request.id, method=method)


def _parts_checked(result: dict[str, Any]) -> int:
    """Return how many parts of an answer are checked one by one; some number above the limit for one with more."""
    # What a server asks for in an answer has names of its own choice: none says that a form is free.
    free = frozenset[str]() if "inputRequests" in result else _FREE
    count, left = 0, [cast(object, result)]
    while left and count <= _CHECKED_LIMIT:
        value = left.pop()
        if isinstance(value, dict):
            count += max(0, len(value) - _FIELDS)
            left.extend(member for name, member in value.items() if name not in free)
        elif isinstance(value, list):
            count += len(value)
            left.extend(value)
    return count
