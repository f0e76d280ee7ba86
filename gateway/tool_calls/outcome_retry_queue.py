"""Outcomes that the database did not accept wait here and are written in order once it does.

The result of such a call is withheld: a call without a record must not be seen. Its effects in the sandbox remain, so
its row and the audit must record them. If this process ends first, the row stays `executing` until another gateway
marks it interrupted. Until then a repetition of the call gets the error that its result is withheld.

A call that did not execute is queued too, once for each request id. Such calls have a tenth of the places, and give
those up when executed calls need them. Where places are short, the tenant with the most loses the newest of them.
"""

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

import structlog

from agent.cancellation import ended
from agent.tool_call import Slot
from gateway.errors import Unavailable
from gateway.storage.database import ConstraintViolated

log = structlog.get_logger(__name__)
NOT_EXECUTED, WITHHELD = "not_executed", "withheld"
_SAID_LIMIT_CHARS = 200
# Executed calls are bounded by those under way when the database failed. Blocked calls are not.
_LIMIT = 10_000
_UNEXECUTED_LIMIT = _LIMIT // 10
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 2.0
_CLOSE_S = 5.0

Write = Callable[[], Awaitable[None]]
"""Writes one call's outcome; idempotent."""


@dataclass(frozen=True)
class UnrecordedCall:
    """A call that could not be recorded. `said` is the database's error.

    `erased`: its thread or its tenant was deleted, or its thread restored, and nothing more is written.
    """

    call_id: str
    executed: bool
    said: str = ""
    erased: bool = False

    def cause(self) -> str:
        """Return the database's error, at most 200 characters."""
        return self.said[:_SAID_LIMIT_CHARS] or "the database did not answer in time"

    def words(self) -> str:
        if not self.executed:
            return (
                f"the call {self.call_id} did not run and changed nothing, because the gateway could not record it in "
                f"the database: {self.cause()}"
            )
        if self.erased:
            return (
                f"the thread or the tenant of the call {self.call_id} was deleted or restored while it ran, so its "
                "result is withheld"
            )
        return (
            f"the call {self.call_id} ran, but its outcome could not be recorded, so its result is withheld. Its "
            "effects in the sandbox remain. The gateway records the outcome once the database accepts writes again: "
            f"{self.cause()}"
        )

    def error(self) -> Unavailable:
        return Unavailable(self.words(), call_id=self.call_id, outcome=WITHHELD if self.executed else NOT_EXECUTED)


UNRECORDED = Slot[UnrecordedCall]("unrecorded")
"""What the caller reads of a call that could not be recorded, or did not execute."""


@dataclass(frozen=True)
class _Late:
    call: UnrecordedCall
    write: Write
    once_for: Hashable
    tenant: str


class OutcomeRetryQueue:
    """Retries writes in the background."""

    def __init__(self) -> None:
        self._late: OrderedDict[str, _Late] = OrderedDict()
        # By whether they executed and by tenant, the oldest first.
        self._waiting: dict[bool, dict[str, dict[str, None]]] = {True: {}, False: {}}
        self._once: set[Hashable] = set()
        self._writing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._late)

    def add(self, call: UnrecordedCall, write: Write, *, tenant: str, once_for: Hashable = None) -> None:
        """Queue an outcome of a tenant; of several with the same `once_for` only the first."""
        if once_for is not None and once_for in self._once:
            return
        self._forget(call.call_id)
        self._late[call.call_id] = _Late(call, write, once_for, tenant)
        self._waiting[call.executed].setdefault(tenant, {})[call.call_id] = None
        self._once.add(once_for)
        if sum(map(len, self._waiting[False].values())) > _UNEXECUTED_LIMIT:
            self._lose_one(executed=False)
        elif len(self._late) > _LIMIT:
            self._lose_one(executed=not self._waiting[False])
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="late outcomes", context=contextvars.Context())

    def _lose_one(self, *, executed: bool) -> None:
        """Drop the newest outcome of the tenant with the most of its kind, of tenants with as many the last to come."""
        waiting = self._waiting[executed]
        most = max(map(len, waiting.values()))
        lost = next(reversed([ids for ids in waiting.values() if len(ids) == most]))
        call_id = next(reversed(lost))
        self._forget(call_id)
        log.error("an outcome is lost: too many are waiting for the database", call_id=call_id, waiting=len(self._late))

    def _forget(self, call_id: str) -> None:
        late = self._late.pop(call_id, None)
        if late is None:
            return
        self._once.discard(late.once_for)
        of_tenants = self._waiting[late.call.executed]
        del of_tenants[late.tenant][call_id]
        if not of_tenants[late.tenant]:
            del of_tenants[late.tenant]

    def refuse(self, call_id: str) -> None:
        """Raise Unavailable if the outcome of a call waits here."""
        late = self._late.get(call_id)
        if late is not None:
            raise late.call.error()

    async def written(self) -> None:
        """Wait until the queue is empty."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def close(self) -> None:
        """Retry for a few seconds more, then give up."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.written()
        except TimeoutError:
            log.warning("outcomes are lost: the database does not accept them", calls=list(self._late)[:100])
        if self._writing is not None:
            await ended(self._writing)

    async def _write_all(self) -> None:
        retry_s = _FIRST_RETRY_S
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
            if self._late.get(call_id) is late:
                self._forget(call_id)
            retry_s = _FIRST_RETRY_S
