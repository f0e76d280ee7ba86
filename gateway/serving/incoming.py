"""An RPC in progress, as gateway/serving/edge.py gets it: its messages are read only when the edge asks for them.

Metadata precedes the first message, so the edge checks the credential before it reads anything. Messages are counted
while they are in memory: requests until the servicer reads the next one or the RPC ends, answers until the peer has
read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc.aio import EOF  # type: ignore[attr-defined]  # grpc-stubs do not know it

from gateway.errors import DeadlineExceeded, InvalidArgument, Overloaded
from gateway.serving.admission import Admission
from gateway.serving.limits import Ends, Tally
from gateway.serving.request_checks import check_maps
from sandbox.fair_semaphore import FairSemaphore

TIMEOUT_S = 20.0
T = TypeVar("T")
# The time to read an answer, to which its size adds.
SEND_S = 20.0
_SLOWEST_BYTES_A_SECOND = 64 * 1024


def call_task() -> asyncio.Task[Any]:
    """Return the task that serves the current call."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call is served in a task")
    return task


class Reads:
    """Reads `each` requests at once of one address or tenant, `in_all` of all of them: grpc buffers each.

    More wait. A request must arrive in time, and sooner if others wait for its place: a well-behaved one arrives with
    the start of the call.
    """

    def __init__(self, each: int, in_all: int, timeout_s: float = TIMEOUT_S) -> None:
        self._each = each
        self._in_all = in_all
        self._timeout_s = timeout_s
        self._with_others_s = min(timeout_s / 2, 2.0)  # while others wait for a turn
        self._turns = FairSemaphore(in_all, of_one=each)
        self._waiting = Tally()
        # The source of each request and when its reading began, as loop.time().
        self._reading: dict[asyncio.Task[object], tuple[str, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, source: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, in its turn and in time; raises Overloaded, DeadlineExceeded."""
        task = call_task()
        if not self._turns.take_free(source):
            await self._wait(source)
        self._reading[task] = (source, asyncio.get_running_loop().time())
        self._set_timer()
        try:
            return await read()
        except asyncio.CancelledError:
            # If the peer disconnected too, the cancellation stands.
            if task in self._reading or task.uncancel():
                raise
            raise DeadlineExceeded("the call's request did not arrive in time") from None
        finally:
            self._reading.pop(task, None)
            self._turns.give_back(source)

    async def _wait(self, source: str) -> None:
        """Wait for a turn and take it; raises Overloaded."""
        self._waiting.add(source)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turns.take(source)
        except TimeoutError:
            own = sum(reading == source for reading, _ in self._reading.values())
            which = "of this caller " if own >= self._each else ""
            raise Overloaded(f"too many requests {which}are still arriving: try again", 1.0) from None
        finally:
            self._waiting.add(source, -1)

    def _set_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._with_others_s / 4, self._end_late_reads, context=contextvars.Context())

    def _end_late_reads(self) -> None:
        """Cancel reads that exceed their time, which is shorter if others wait for their place."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        full = len(self._reading) >= self._in_all
        for task, (source, began) in list(self._reading.items()):
            others_wait = self._waiting and (full or source in self._waiting)
            if began <= now - (self._with_others_s if others_wait else self._timeout_s):
                del self._reading[task]
                task.cancel()
        if self._reading:
            self._set_timer()


def send_limit_s(size_bytes: int, send_s: float = SEND_S) -> float:
    """Return how long a peer may take to read an answer."""
    return send_s + size_bytes / _SLOWEST_BYTES_A_SECOND


class SendTimeouts:
    """Cancels RPCs whose peer does not read the answer."""

    def __init__(self, send_s: float = SEND_S) -> None:
        self.send_s = send_s
        self._sending: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, size_bytes: int) -> Callable[[], object]:
        """Cancel the RPC of this task unless the returned function is called in time: when the answer was sent."""
        loop, task = asyncio.get_running_loop(), call_task()
        self._sending[task] = loop.time() + send_limit_s(size_bytes, self.send_s)
        if self._timer is None:
            self._timer = loop.call_later(self.send_s, self._look, context=contextvars.Context())
        return partial(self._sending.pop, task, None)

    @contextlib.contextmanager
    def small_message(self) -> Iterator[None]:
        """Cancel the RPC of this task unless the block, which sends a small message, ends in time."""
        sent = self.begin(0)
        try:
            yield
        finally:
            sent()

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, until in list(self._sending.items()):
            if until <= loop.time():
                task.cancel()  # gateway/serving/prefetching_server.py makes grpc's core close the call
        if self._sending:
            self._timer = loop.call_later(min(1.0, self.send_s), self._look)


@dataclass(eq=False)
class Incoming:
    """One RPC: an async iterator over the requests of a stream. `streams` says whether the method takes one."""

    context: Any
    decode: Callable[[bytes], Any]
    reads: Reads
    identified: Callable[[], None]
    _: KW_ONLY
    streams: bool
    after: Ends = field(init=False, default_factory=Ends)
    """Closed when the answer was sent or the RPC is gone."""
    _tenant: str = field(init=False, default="")
    _bytes: Admission | None = field(init=False, default=None)
    _request_bytes: int = field(init=False, default=0)
    _answer_bytes: int = field(init=False, default=0)

    def identify(self, tenant: str, counted: Admission) -> None:
        """Read for a tenant from now on."""
        self.identified()
        self._tenant, self._bytes = tenant, counted

    async def request(self) -> Any:
        """Return the one request of a call; raises InvalidArgument, DeadlineExceeded."""
        return await read_request(self.reads, self._tenant, self.context, self.decode)

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> Any:
        """Return the next request of a stream; raises InvalidArgument."""
        self._count_request(0)
        raw = await self.context.read()
        if raw is EOF:
            raise StopAsyncIteration
        self._count_request(len(raw))
        return _decoded(self.decode, raw)

    def count_answer(self, size_bytes: int) -> None:
        """Count an answer that is about to be sent, in place of the one before."""
        if self._bytes is not None:
            self._bytes.answers.add(self._tenant, size_bytes - self._answer_bytes)
            self._answer_bytes = size_bytes

    def close(self, _task: object = None) -> None:
        self._count_request(0)
        self.count_answer(0)
        self.identified()
        self.after.close()

    def _count_request(self, size_bytes: int) -> None:
        if self._bytes is not None and size_bytes != self._request_bytes:
            self._bytes.requests.add(self._tenant, size_bytes - self._request_bytes)
            self._request_bytes = size_bytes


async def read_request(reads: Reads, source: str, context: Any, decode: Callable[[bytes], Any]) -> Any:
    """Return the one request of a call; raises InvalidArgument, DeadlineExceeded."""
    read: Callable[[], Awaitable[Any]] = context.read
    raw = await reads.read(source, read)
    if raw is EOF:
        raise InvalidArgument("the call has no request")
    return _decoded(decode, raw)


def _decoded(decode: Callable[[bytes], Any], raw: bytes) -> Any:
    kind = getattr(decode, "__self__", None)  # `decode` is FromString of a message's class
    try:
        if isinstance(kind, type) and issubclass(kind, Message):
            check_maps(kind, raw)
        return decode(raw)
    except DecodeError as error:  # it names the type and quotes nothing
        why = f"the request cannot be decoded: {error}; strings are valid UTF-8, without surrogates"
        raise InvalidArgument(why) from None
