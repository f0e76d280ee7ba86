"""Outcomes of tool calls that the database did not take: kept here, and written in their order once it does.

Nobody has seen such a call's result: it is withheld, for what has no record must not be known. What the call did in its
sandbox stands all the same, so its row and the audit must come to say so. Should this process end before, the row is
still `executing`, and whoever looks after the dead finds it interrupted. Until then a repetition of the call is told
here that its result is withheld: nobody can say for how long.

A call that did not execute is kept too, once for a request id, however often its caller has come back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

import structlog

from gateway.errors import Unavailable
from gateway.storage.database import ConstraintViolated
from gateway.tool_calls.unrecorded_call import UnrecordedCall

log = structlog.get_logger(__name__)
# A call is written before it executes, so there are no more than were under way when the database went away; blocked
# calls do not execute, and can be many.
_LIMIT = 10_000
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 2.0
_CLOSE_S = 5.0

Write = Callable[[], Awaitable[None]]
"""Writes one call's outcome; done twice it is the same as once."""


@dataclass(frozen=True)
class _Late:
    call: UnrecordedCall
    write: Write
    once_for: Hashable


class OutcomeRetryQueue:
    """Writes what could not be written, in the background."""

    def __init__(self, *, first_retry_s: float = _FIRST_RETRY_S) -> None:
        self._late: OrderedDict[str, _Late] = OrderedDict()
        self._once: set[Hashable] = set()
        self._first_retry_s = first_retry_s
        self._writing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._late)

    def add(self, call: UnrecordedCall, write: Write, *, once_for: Hashable = None) -> None:
        """Take an outcome; of several that are `once_for` the same thing the first stands for all."""
        if once_for is not None and once_for in self._once:
            return
        if len(self._late) >= _LIMIT:
            waiting = len(self._late)
            log.error(
                "an outcome is lost: too many are waiting for the database", call_id=call.call_id, waiting=waiting
            )
            return
        self._late[call.call_id] = _Late(call, write, once_for)
        self._once.add(once_for)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="late outcomes", context=contextvars.Context())

    def refuse(self, call_id: str) -> None:
        """Raise Unavailable where the outcome of a call waits here."""
        late = self._late.get(call_id)
        if late is not None:
            raise late.call.error()

    async def written(self) -> None:
        """Return when nothing waits any more."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def close(self) -> None:
        """Give the database a last few seconds."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.written()
        except TimeoutError:
            log.warning("outcomes are lost: the database does not accept them", calls=list(self._late)[:100])
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_all(self) -> None:
        retry_s = self._first_retry_s
        while self._late:
            call_id, late = next(iter(self._late.items()))
            try:
                await late.write()
            except Unavailable:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            except ConstraintViolated:
                log.debug("an outcome had been written", call_id=call_id)
            except Exception as error:
                # No traceback: it might show what tenants wrote.
                log.error("an outcome cannot be written", call_id=call_id, error=type(error).__name__)  # noqa: TRY400
            else:
                log.info("a late outcome is written", call_id=call_id)
            del self._late[call_id]
            self._once.discard(late.once_for)
            retry_s = self._first_retry_s
