"""The queries of runs that wait for an approval: which may go on, and taking one, which one gateway does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, exists, insert, select, update

from agent.events import Event
from gateway.clock import NowUs, now_us
from gateway.storage.approval_store import PENDING
from gateway.storage.database import Database
from gateway.storage.store import Thread
from gateway.storage.tables import approvals, events, runs, threads

_READY_LIMIT = 100


@dataclass(frozen=True)
class WaitingRun:
    """A run that waited and may go on; `gateway` is the one that hosted it last."""

    id: str
    thread: Thread
    gateway: str | None


@dataclass(frozen=True)
class ClaimedRun:
    """A run that was taken out of its wait: the state it waited in, and the number of its last event."""

    suspended: str
    last_sequence: int


class WaitingStore:
    """Typed access to the runs that wait."""

    def __init__(self, database: Database, *, gateway: str | None = None, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self.gateway = gateway

    async def ready(self) -> Sequence[WaitingRun]:
        """Return runs of which nothing is asked any more; what nobody answered in time is answered."""
        open_ = exists().where(
            approvals.c.run_id == runs.c.id, approvals.c.status == PENDING, approvals.c.expires_us > self._clock()
        )
        query = (
            select(runs.c.id, runs.c.tenant, runs.c.thread_id, runs.c.gateway, threads.c.name)
            .join(threads, runs.c.thread_id == threads.c.id)
            .where(runs.c.status == "waiting", ~open_)
            .order_by(runs.c.started_us)
            .limit(_READY_LIMIT)
        )
        return [
            WaitingRun(row.id, Thread(row.thread_id, row.tenant, row.name), row.gateway)
            for row in await self._database.rows(query)
        ]

    async def in_thread(self, thread: Thread) -> str | None:
        """Return the run that waits in a thread."""
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status == "waiting")
        found = await self._database.rows(query)
        return found[0].id if found else None

    async def claim(self, run_id: str) -> ClaimedRun | None:
        """Take a waiting run for this gateway; None when another was first."""

        def work(connection: Connection) -> ClaimedRun | None:
            query = select(runs.c.checkpoint, runs.c.last_sequence).where(runs.c.id == run_id)
            row = connection.execute(query).first()
            waiting = (runs.c.id == run_id) & (runs.c.status == "waiting")
            taken = update(runs).where(waiting).values(status="running", gateway=self.gateway, checkpoint=None)
            if not connection.execute(taken).rowcount or row is None:
                return None
            return ClaimedRun(str(row.checkpoint), row.last_sequence)

        return await self._database.transact(work)

    async def end(self, run_id: str, finished: Event) -> bool:
        """End a run while it waits; return whether it waited."""
        payload = json.dumps(finished.payload)
        stop = finished.payload["stop"]
        told = stop if isinstance(stop, dict) else {}

        def work(connection: Connection) -> bool:
            now = self._clock()
            waiting = (runs.c.id == run_id) & (runs.c.status == "waiting")
            changes = {
                "status": finished.payload["status"],
                "stop_hook": told.get("hook"),
                "stop_rule": told.get("rule"),
                "stop_reason": told.get("reason"),
                "finished_us": now,
                "checkpoint": None,
                "last_sequence": runs.c.last_sequence + 1,
            }
            if not connection.execute(update(runs).where(waiting).values(**changes)).rowcount:
                return False
            sequence = connection.execute(select(runs.c.last_sequence).where(runs.c.id == run_id)).scalar_one()
            row = {"run_id": run_id, "sequence": sequence, "type": finished.type, "at_us": now, "payload": payload}
            connection.execute(insert(events), row)
            return True

        return await self._database.transact(work)
