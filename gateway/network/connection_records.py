"""Writes connections to the database: a row for each that is open, an audit record for each that has ended.

A transaction for each would cost more than the rest of a small connection, so all within _TOGETHER_S share one. A
connection that ends within that time gets only its audit record.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from agent.cancellation import to_the_end
from agent.events import emit
from gateway.errors import Unavailable
from gateway.network.outgoing import Outgoing
from gateway.storage.audit_store import AuditEntry
from gateway.storage.connection_store import ConnectionStore
from gateway.support.clock import make_id

# How long a record waits for others. A process that is killed meanwhile loses it.
_TOGETHER_S = 0.05
log = structlog.get_logger(__name__)

Measured = Callable[[Outgoing], Awaitable[None]]
"""Counts a connection that is over, for metrics and quotas. Raises Unavailable."""


async def unmeasured(_one: Outgoing) -> None:
    """Count nothing."""


@dataclass(eq=False)
class ConnectionRecords:
    """Records the connections of all sandboxes of this process. What the database does not accept is logged."""

    store: ConnectionStore
    measured: Measured = unmeasured
    _new: dict[Outgoing, None] = field(default_factory=dict)
    _written: dict[Outgoing, str] = field(default_factory=dict)
    """Those that are open in the database, or are being written, by their ids there."""
    _over: list[tuple[Outgoing, AuditEntry | None]] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _later: asyncio.Task[None] | None = None

    def opened(self, one: Outgoing) -> None:
        """Note one that was dialled."""
        if one not in self._written:
            self._new[one] = None
            self._soon()

    def ended(self, one: Outgoing, entry: AuditEntry | None) -> None:
        """Record one that is over, and report it to the run whose call made it; without an entry, only forget it."""
        self._new.pop(one, None)
        if entry is not None:
            _report(one, entry)
        if entry is not None or one in self._written:
            self._over.append((one, entry))
            self._soon()

    async def written(self) -> None:
        """Write everything so far."""
        await to_the_end(self._write())

    async def close(self) -> None:
        """Write the rest; no connection may be open."""
        await self.written()
        if self._later is not None:
            self._later.cancel()

    def _soon(self) -> None:
        if self._later is None:
            self._later = asyncio.create_task(self._write_later(), context=contextvars.Context())

    async def _write_later(self) -> None:
        try:
            while self._new or self._over:
                await asyncio.sleep(_TOGETHER_S)
                await self._write()
        finally:
            self._later = None

    async def _write(self) -> None:
        async with self._writing:
            new, over, self._new, self._over = self._new, self._over, {}, []
            if not new and not over:
                return
            ended = [(self._written.pop(one, ""), entry) for one, entry in over]
            ids = {one: make_id("conn") for one in new}
            self._written |= ids
            try:
                await self.store.write({id_: one.entry_if_lost() for one, id_ in ids.items()}, ended)
            except Exception as error:  # no fault may cost the calls that wait for this, or later records
                for one in ids:
                    self._written.pop(one, None)
                _report_fault("connections are not on record", error, opened=len(new), ended=len(over))
            measuring = [self.measured(one) for one, entry in over if entry is not None]
            for found in await asyncio.gather(*measuring, return_exceptions=True):
                if isinstance(found, Exception):
                    _report_fault("a connection is not counted", found)


def _report_fault(event: str, error: Exception, **counts: int) -> None:
    log.error(event, **counts, error=str(error), exc_info=None if isinstance(error, Unavailable) else error)


def _report(one: Outgoing, entry: AuditEntry) -> None:
    details = entry.details
    emit(
        one.call.events,
        "connection_ended",
        call_id=entry.call_id,
        host=one.target.host,
        port=one.target.port,
        method=one.target.method,
        verdict=entry.verdict,
        rule=entry.rule,
        reason=details.get("reason", ""),
        policy_version=entry.policy_version,
        outcome=entry.outcome,
        bytes_up=one.bytes_up,
        bytes_down=one.bytes_down,
        credential=details.get("credential", ""),
        duration_ms=entry.duration_us / 1000,
        over_limit_before=details.get("over_limit_before", 0),
    )
