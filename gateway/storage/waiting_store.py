"""The queries of runs that nobody hosts: those that wait for an approval, and those whose gateway is lost.

Which may go on, and taking one, which one gateway does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, exists, func, insert, or_, select, true, update

from agent.events import Event
from gateway.clock import NowUs, now_us
from gateway.storage.approval_store import PENDING
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.lease_store import live_gateways
from gateway.storage.run_audit import run_changed
from gateway.storage.run_writes import Claim
from gateway.storage.store import Thread
from gateway.storage.tables import approvals, events, runs, threads

_READY_LIMIT = 100
Because = Literal["approval", "gateway_lost", "gateway_stopped"]


@dataclass(frozen=True)
class WaitingRun:
    """A run that may go on, and why.

    `gateway` is the one that hosted it last, where that serves still; `cancelled` says that somebody asked for its end.
    """

    id: str
    thread: Thread
    gateway: str | None
    epoch: int
    because: Because
    cancelled: bool = False


@dataclass(frozen=True)
class ClaimedRun:
    """A run that was taken: the state that it goes on from, None where it had none yet, and its last event's number."""

    claim: Claim
    checkpoint: str | None
    last_sequence: int


class WaitingStore:
    """Typed access to the runs that nobody hosts; with `engine`, to those whose workspace is there or nowhere yet."""

    def __init__(
        self, database: Database, *, gateway: str | None = None, engine: str | None = None, clock: NowUs = now_us
    ) -> None:
        self._database = database
        self._audit = AuditStore(database, clock)
        self._clock = clock
        self._engine = engine
        self.gateway = gateway

    async def ready(self) -> Sequence[WaitingRun]:
        """Return waiting runs of which nothing is asked any more; what nobody answered in time is answered."""
        open_ = exists().where(
            approvals.c.run_id == runs.c.id, approvals.c.status == PENDING, approvals.c.expires_us > self._clock()
        )
        return await self._found((runs.c.status == "waiting") & ~open_, waited=True)

    async def abandoned(self) -> Sequence[WaitingRun]:
        """Return runs that are under way by their row and whose gateway has no lease, or is this one."""
        live = live_gateways(self._clock())
        nobodys = or_(runs.c.gateway.is_(None), runs.c.gateway == self.gateway, runs.c.gateway.not_in(live))
        return await self._found((runs.c.status == "running") & nobodys, waited=False)

    async def _found(self, which: ColumnElement[bool], *, waited: bool) -> Sequence[WaitingRun]:
        here = true() if self._engine is None else or_(threads.c.engine.is_(None), threads.c.engine == self._engine)
        serves = runs.c.gateway.in_(live_gateways(self._clock())).label("serves")
        # In turn: the oldest of each tenant, then the second of each. What cannot go on, for its tenant's quota is used
        # up or its tenant is not configured, must not keep other tenants' runs out of the page.
        turn = func.row_number().over(partition_by=runs.c.tenant, order_by=runs.c.started_us)
        query = (
            select(runs.c.id, runs.c.tenant, runs.c.thread_id, runs.c.gateway, runs.c.epoch, runs.c.cancel_us)
            .add_columns(threads.c.name, serves)
            .join(threads, runs.c.thread_id == threads.c.id)
            .where(which, here)
            .order_by(turn, runs.c.started_us)
            .limit(_READY_LIMIT)
        )
        return [
            WaitingRun(
                row.id,
                Thread(row.thread_id, row.tenant, row.name),
                row.gateway if row.serves else None,
                row.epoch,
                "approval" if waited else "gateway_lost" if row.gateway is not None else "gateway_stopped",
                row.cancel_us is not None,
            )
            for row in await self._database.rows(query)
        ]

    async def in_thread(self, thread: Thread) -> str | None:
        """Return the run that waits in a thread."""
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status == "waiting")
        found = await self._database.rows(query)
        return found[0].id if found else None

    async def claim(self, run: WaitingRun) -> ClaimedRun | None:
        """Take a run for this gateway; None when another was first, or it is over."""
        status = "waiting" if run.because == "approval" else "running"
        seen = (runs.c.id == run.id) & (runs.c.epoch == run.epoch) & (runs.c.status == status)

        def work(connection: Connection) -> ClaimedRun | None:
            taken = update(runs).where(seen).values(status="running", gateway=self.gateway, epoch=run.epoch + 1)
            if not connection.execute(taken).rowcount:
                return None
            query = select(runs.c.checkpoint, runs.c.last_sequence).where(runs.c.id == run.id)
            row = connection.execute(query).one()
            if run.because != "approval":
                told = run_changed(connection, "run_taken_over", run.id, details={"because": run.because})
                self._audit.append(connection, entries=told)
            return ClaimedRun(Claim(run.id, run.epoch + 1), row.checkpoint, row.last_sequence)

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
            self._audit.append(connection, entries=run_changed(connection, "run_finished", run_id))
            return True

        return await self._database.transact(work)
