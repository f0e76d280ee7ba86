"""An RPC under way, as gateway/serving/edge.py gets it: its messages are read when the edge asks, and not before.

Metadata comes before the first message, so the edge asks for a credential before it reads anything. Messages are
counted as long as they are in memory: requests until the servicer asks for the next one or the RPC is over, answers
until the peer took them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it

from gateway.errors import InvalidArgument
from gateway.identity.call_credentials import Context
from gateway.serving.budget import Budget
from gateway.serving.reads import Reads

# An answer may take this long, and longer the larger it is.
SEND_S = 20.0
_SLOWEST_BYTES_A_SECOND = 64 * 1024


class Bytes(Protocol):
    """Where a tenant's messages in memory are counted."""

    requests: Budget
    answers: Budget


class Sending:
    """Ends RPCs whose peer does not take the answer."""

    def __init__(self, send_s: float = SEND_S) -> None:
        self.send_s = send_s
        self._sending: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any], size_bytes: int) -> None:
        """Have an RPC's task end unless it ends by itself in time."""
        loop = asyncio.get_running_loop()
        self._sending[task] = loop.time() + self.send_s + size_bytes / _SLOWEST_BYTES_A_SECOND
        task.add_done_callback(self._sent)
        if self._timer is None:
            self._timer = loop.call_later(self.send_s, self._look, context=contextvars.Context())

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Have the RPC of this task end unless the block, which sends a small message, ends in time."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served in a task")
        self.begin(task, 0)
        yield
        task.remove_done_callback(self._sent)
        self._sent(task)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.pop(task, None)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, until in list(self._sending.items()):
            if until <= loop.time():
                task.cancel()  # gateway/serving/rpc_tasks.py has the core close the call
        if self._sending:
            self._timer = loop.call_later(min(1.0, self.send_s), self._look)


class Incoming:
    """One RPC: an async iterator over its requests, for methods that take a stream."""

    def __init__(
        self,
        context: Context,
        decode: Callable[[bytes], Any],
        reads: Reads,
        identified: Callable[[], None],
        *,
        streams: bool,
    ) -> None:
        self.streams = streams
        """Whether the method takes a stream of requests."""
        self._context: Any = context
        self._decode = decode
        self._reads = reads
        self._identified = identified
        self._whose = ""
        self._bytes: Bytes | None = None
        self._held_bytes = 0
        self._answer_bytes = 0
        self.after = contextlib.ExitStack()
        """Is closed when the answer was sent or the RPC is gone."""

    def known(self, whose: str, counted: Bytes) -> None:
        """Read on behalf of a tenant from now on."""
        self._identified()
        self._whose, self._bytes = whose, counted

    async def request(self) -> Any:
        """Return the one request of a call; raises InvalidArgument, DeadlineExceeded."""
        return await read_request(self._reads, self._whose, self._context, self._decode)

    def __aiter__(self) -> Incoming:
        """Return the iterator over a stream of requests."""
        return self

    async def __anext__(self) -> Any:
        """Return the next request of a stream; raises DecodeError."""
        self._hold(0)
        raw = await self._context.read()
        if raw is EOF:
            raise StopAsyncIteration
        self._hold(len(raw))
        return self._decode(raw)

    def answers(self, size_bytes: int) -> None:
        """Count an answer that is about to be sent, in place of the one before."""
        if self._bytes is not None:
            self._bytes.answers.add(self._whose, size_bytes - self._answer_bytes)
            self._answer_bytes = size_bytes

    def over(self, _task: object = None) -> None:
        """Give back what the RPC has."""
        self._hold(0)
        self.answers(0)
        self._identified()
        self.after.close()

    def _hold(self, size_bytes: int) -> None:
        if self._bytes is not None and size_bytes != self._held_bytes:
            self._bytes.requests.add(self._whose, size_bytes - self._held_bytes)
            self._held_bytes = size_bytes


async def read_request(reads: Reads, whose: str, context: Any, decode: Callable[[bytes], Any]) -> Any:
    """Return the one request of a call; raises InvalidArgument, DeadlineExceeded."""
    read: Callable[[], Awaitable[Any]] = context.read
    raw = await reads.read(whose, read)
    if raw is EOF:
        raise InvalidArgument("the call has no request")
    try:
        return decode(raw)
    except DecodeError as error:
        raise not_decoded(error) from None


def not_decoded(error: DecodeError) -> InvalidArgument:
    """Return the error of bytes that are no message of the method's type; `error` names that, and quotes nothing."""
    return InvalidArgument(f"the request cannot be decoded: {error}; strings are valid UTF-8, without surrogates")
