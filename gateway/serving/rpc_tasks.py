"""Closes RPCs that grpc.aio would keep open.

grpc.aio serves an RPC in two tasks: an inner one runs the handler and sends the answer, an outer one waits until
grpc's core has closed the call. Cancelling the inner task does not close the call, so a peer that never opens its flow
control window keeps the call, and the answer in memory, for as long as its connection lives. grpc.aio cannot cancel a
server call, but the core does when the outer task, which has the last reference to it, ends.

So the outer task of each RPC is recorded, and cancelled once the inner one has been done for LINGER_S. After a sent
answer it ends by itself within a few turns of the loop. With a grpcio whose coroutines have other names nothing is
recorded, and tests/unit/gateway/serving/test_rpc_tasks.py fails.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_S = 1.0
_INNER = "_handle_exceptions"


def follow_rpcs(loop: asyncio.AbstractEventLoop, linger_s: float = LINGER_S) -> None:
    """Make a loop close the RPCs whose handler is done; call it before its first server starts."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_Lingering(loop, linger_s).make_task)


class _Lingering:
    """The outer tasks whose inner task is done, and since when."""

    def __init__(self, loop: asyncio.AbstractEventLoop, linger_s: float) -> None:
        self._loop = loop
        self._linger_s = linger_s
        self._outer: dict[asyncio.Task[Any], asyncio.Task[Any]] = {}
        self._since: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task as asyncio does, and record the current task if the new one serves an RPC."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        if getattr(coro, "__name__", "") == _INNER and (outer := asyncio.current_task(loop)) is not None:
            self._outer[task] = outer
            task.add_done_callback(self._done)
        return task

    def _done(self, inner: asyncio.Task[Any]) -> None:
        outer = self._outer.pop(inner)
        if outer.done():
            return
        self._since[outer] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self._look)

    def _look(self) -> None:
        """Cancel what has lingered for long enough; entries are in the order of their times."""
        self._timer = None
        until = self._loop.time() - self._linger_s
        for outer, since in list(self._since.items()):
            if since > until and not outer.done():
                self._timer = self._loop.call_at(since + self._linger_s, self._look)
                return
            del self._since[outer]
            outer.cancel()
