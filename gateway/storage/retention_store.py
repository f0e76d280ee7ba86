"""The queries of retention: what is too old, found by a reader, and removed in small batches by the writer."""

from __future__ import annotations

from functools import partial

from sqlalchemy import ColumnElement, Connection, delete, exists, select, update

from gateway.clock import NowUs, now_us
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.request_store import REMEMBERED_US
from gateway.storage.tables import RUNS_UNDER_WAY, audit_heads, events, runs, tool_calls

# What one transaction removes: some milliseconds' worth, for all writers of the database wait meanwhile.
_BATCH_ROWS = 500
_RUNS_AT_ONCE = 50


class RetentionStore:
    """Removes what is older than a time, UTC microseconds since 1970. Each method returns how many rows it took.

    To be told twice, also by two gateways at once, is the same as once.
    """

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def prune_events(self, before_us: int) -> int:
        """Remove the events of runs that ended before that, but for each one's last."""
        ended = runs.c.status.not_in(RUNS_UNDER_WAY) & (runs.c.finished_us < before_us)
        earlier = (events.c.run_id == runs.c.id) & (events.c.sequence < runs.c.last_sequence)
        found = select(runs.c.id, runs.c.last_sequence).where(ended, exists().where(earlier)).limit(_RUNS_AT_ONCE)
        removed = 0
        while page := await self._database.rows(found):
            for run_id, last_sequence in (tuple(row) for row in page):
                which = (events.c.run_id == run_id) & (events.c.sequence < last_sequence)
                batch = select(events.c.sequence).where(which).limit(_BATCH_ROWS)
                removed += await self._drained(which & events.c.sequence.in_(batch))
        return removed

    async def _drained(self, which: ColumnElement[bool]) -> int:
        removed = 0
        while gone := await self._database.transact(
            lambda writer: writer.execute(delete(events).where(which)).rowcount
        ):
            removed += gone
        return removed

    async def prune_tool_calls(self, before_us: int) -> int:
        """Remove the calls that ended before that, but for those of runs under way and those that are promised.

        Promised is what a request id is answered with, REMEMBERED_US long; forget_results() takes the promise back.
        """
        calls = tool_calls.c
        goes_on = exists().where(runs.c.id == calls.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
        unpromised = calls.request_id.is_(None) | (calls.started_us <= self._clock() - REMEMBERED_US)
        old = (calls.finished_us < before_us) & unpromised
        found = select(calls.id).where(old, ~goes_on).limit(_BATCH_ROWS)
        removed = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            await self._database.write((tool_calls.delete().where(calls.id.in_(ids), old), None))
            removed += len(ids)
        return removed

    async def forget_results(self, before_us: int) -> int:
        """Forget the request ids and results of calls that were made before that and are over."""
        calls = tool_calls.c
        known = calls.request_id.is_not(None) & (calls.started_us < before_us) & calls.finished_us.is_not(None)
        found = select(calls.id).where(known).limit(_BATCH_ROWS)
        nothing = {"request_id": None, "request_digest": None, "result": None}
        forgotten = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            await self._database.write((update(tool_calls).where(calls.id.in_(ids), known).values(**nothing), None))
            forgotten += len(ids)
        return forgotten

    async def prune_audit(self, before_us: int) -> int:
        """Remove the oldest records of every chain, those from before that; the chain says so itself."""
        removed = 0
        for row in await self._database.rows(select(audit_heads.c.tenant)):
            work = partial(self._pruned, tenant=row.tenant, before_us=before_us)
            while gone := await self._database.transact(work):
                removed += gone
        return removed

    def _pruned(self, connection: Connection, *, tenant: str, before_us: int) -> int:
        return self._audit.prune(connection, tenant=tenant, before_us=before_us)
