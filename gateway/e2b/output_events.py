"""The output of a process and its end, as one stream of events that are merged in order of arrival."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from gateway.client import Process
from gateway.e2b.envd_call import EnvdCall
from gateway.errors import DeadlineExceeded, TooLarge, Unavailable

# Pieces that wait for a slow reader; what comes after them stays in the sandbox.
_PIECES = 4
SANDBOX_ENDED = "the sandbox ended before the stream was complete"
"""The SDKs then ask for its health, and say what that says."""


@dataclass(frozen=True)
class Output:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class KeepAlive:
    """Nothing has happened for a while."""


Event = Output | Process | KeepAlive


async def output_events(
    call: EnvdCall, process: Process, *, keepalive_s: float, deadline_s: float | None
) -> AsyncIterator[Event]:
    """Yield the output of a process from its beginning, and at last the process as it ended.

    Raises DeadlineExceeded at a time of the event loop, and Unavailable if the sandbox ends meanwhile.
    """
    pieces: asyncio.Queue[Output | Process | BaseException] = asyncio.Queue(_PIECES)
    work = asyncio.create_task(_follow(call, process, pieces), name="output of a process for E2B")
    over = asyncio.create_task(call.over.wait(), name="end of a stream for E2B")
    try:
        while True:
            piece = await _next(pieces, over, keepalive_s, deadline_s)
            if piece is None:
                yield KeepAlive()
                continue
            if isinstance(piece, BaseException):
                raise Unavailable(SANDBOX_ENDED) if call.over.is_set() else piece
            yield piece
            if isinstance(piece, Process):
                return
    finally:
        for task in (work, over):
            task.cancel()
        await asyncio.wait((work, over))


async def _next(
    pieces: asyncio.Queue[Any], over: asyncio.Task[Any], keepalive_s: float, deadline_s: float | None
) -> Any:
    """Return the next piece, None if it is time for a sign of life."""
    with contextlib.suppress(asyncio.QueueEmpty):
        return pieces.get_nowait()
    left_s = keepalive_s
    if deadline_s is not None:
        left_s = min(left_s, deadline_s - asyncio.get_running_loop().time())
    taken = asyncio.ensure_future(pieces.get())
    try:
        await asyncio.wait((taken, over), timeout=max(left_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            return taken.result()
    finally:
        taken.cancel()
    if over.done():
        return Unavailable(SANDBOX_ENDED)
    if deadline_s is not None and asyncio.get_running_loop().time() >= deadline_s:
        return DeadlineExceeded("the time of the stream is over")
    return None


async def _follow(call: EnvdCall, process: Process, pieces: asyncio.Queue[Any]) -> None:
    async def read(stream: Literal["stdout", "stderr"]) -> None:
        at = 0
        output = call.client.process_output(call.thread, process.id, stderr=stream == "stderr", follow=True)
        async for piece in output:
            if piece.offset > at:
                raise TooLarge(
                    f"{piece.offset - at:,} bytes of {stream} are lost: a process keeps a limited amount of output"
                )
            at = piece.offset + len(piece.data)
            await pieces.put(Output(stream, piece.data))

    reads: list[Coroutine[Any, Any, Any]] = [read("stdout")]
    if not process.terminal:
        reads.append(read("stderr"))
    try:
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(call.client.wait_process(call.thread, process.id))
            for one in reads:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        await pieces.put(errors.exceptions[0])
    except Exception as error:
        await pieces.put(error)
    else:
        await pieces.put(ended.result())
