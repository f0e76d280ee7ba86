"""Requests that are being read. grpc holds all that has come of each, up to the limit of a message.

So few are read at once, of one address or tenant and of all; more wait. A request must come within a while, and sooner
when others wait for its place: an honest one comes with the call's beginning.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import DeadlineExceeded, Overloaded

PATIENCE_S = 20.0
_PATIENCE_WITH_OTHERS_S = 2.0
T = TypeVar("T")


class Reads:
    """Reads `each` requests at once of one peer or tenant, `in_all` of all of them."""

    def __init__(self, each: int, in_all: int, patience_s: float = PATIENCE_S) -> None:
        self._each = each
        self._in_all = in_all
        self._patience_s = patience_s
        self._with_others_s = min(patience_s / 2, _PATIENCE_WITH_OTHERS_S)
        # Whose each is and when it began, as loop.time(), the oldest first.
        self._reading: dict[asyncio.Task[object], tuple[str, float]] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, whose: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return what `read` returns, in its turn and within its time; raises DeadlineExceeded."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served in a task")
        if self._has_room(whose) and whose not in self._waiting:
            self._counts[whose] += 1
        else:
            await self._turn(whose)
        self._reading[task] = (whose, asyncio.get_running_loop().time())
        self._set_timer()
        try:
            return await read()
        except asyncio.CancelledError:
            # If the peer went away too, nobody is left to answer.
            if task in self._reading or task.uncancel():
                raise
            raise DeadlineExceeded("the call's request did not come") from None
        finally:
            self._reading.pop(task, None)
            self._give_back(whose)

    def _has_room(self, whose: str) -> bool:
        return self._counts[whose] < self._each and self._counts.total() < self._in_all

    async def _turn(self, whose: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(turn)
        self._set_timer()
        try:
            async with asyncio.timeout(self._patience_s):
                await turn
        except TimeoutError:
            self._withdraw(whose, turn)
            whose_are = "of this caller " if self._counts[whose] >= self._each else ""
            raise Overloaded(f"too many requests {whose_are}are still arriving: try again", 1.0) from None
        except asyncio.CancelledError:
            self._withdraw(whose, turn)
            raise

    def _withdraw(self, whose: str, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._give_back(whose)
        elif (queue := self._waiting.get(whose)) and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[whose]

    def _give_back(self, whose: str) -> None:
        self._counts[whose] -= 1
        if not self._counts[whose]:
            del self._counts[whose]
        # Whoever has waited longest for a turn goes behind the others afterwards, so that all get theirs.
        for one in list(self._waiting):
            while self._has_room(one) and (queue := self._waiting.pop(one, None)):
                turn = queue.popleft()
                if not turn.done():
                    self._counts[one] += 1
                    turn.set_result(None)
                if queue:
                    self._waiting[one] = queue

    def _set_timer(self) -> None:
        if not self._reading:
            return
        loop = asyncio.get_running_loop()
        oldest = next(iter(self._reading.values()))[1]
        at = oldest + (self._with_others_s if self._waiting else self._patience_s)
        if self._timer is None or self._timer.when() > at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(max(at, loop.time() + 0.01), self._look, context=contextvars.Context())

    def _look(self) -> None:
        """End what has taken too long, and what others have waited for long enough."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        full = self._counts.total() >= self._in_all
        for task, (whose, began) in list(self._reading.items()):
            waited_for = self._waiting and (full or whose in self._waiting)
            if began <= now - (self._with_others_s if waited_for else self._patience_s):
                del self._reading[task]
                task.cancel()
        if self._reading:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(self._with_others_s, self._patience_s), self._look)
