"""The queries of unhosted runs: those that wait for an approval, and those whose gateway is lost.

They find the runs that can continue, and claim a run for exactly one gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    String,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from agent.events import Event
from gateway.storage.approval_writes import PENDING
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.lease_store import live_gateways
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.run_audit import run_changed
from gateway.storage.run_writes import Claim, finish_changes
from gateway.storage.tables import approvals, events, gateways, runs, threads
from gateway.support.clock import NowUs, now_us

_READY_LIMIT = 100
Because = Literal["approval", "gateway_lost", "gateway_stopped", "placed"]
"""Why a run can continue; a `placed` one was recorded for the gateways of another engine, and begins."""


def _unhosted(which: ColumnElement[bool]) -> Prepared:
    """Return the query for runs that can continue on engine `here` (NULL for any).

    Prepared, since it runs all the time.

    In turn, the oldest run of each tenant, then the second of each: runs that cannot continue, because of their
    tenant's quota or configuration, must not keep other tenants' runs out of the page.
    """
    here = bindparam("here", type_=String)
    turn = func.row_number().over(partition_by=runs.c.tenant, order_by=runs.c.started_us)
    return Prepared(
        select(runs.c.id, runs.c.tenant, runs.c.thread_id, runs.c.gateway, runs.c.epoch, runs.c.cancel_us)
        .add_columns(threads.c.name, runs.c.gateway.in_(_LIVE).label("serves"))
        .join(threads, runs.c.thread_id == threads.c.id)
        .where(which, or_(here.is_(None), threads.c.engine.is_(None), threads.c.engine == here))
        .order_by(turn, runs.c.started_us)
        .limit(_READY_LIMIT)
    )


_LIVE = live_gateways(bindparam("at_us", type_=BigInteger))
_ASKED = exists().where(
    approvals.c.run_id == runs.c.id,
    approvals.c.status == PENDING,
    approvals.c.expires_us > bindparam("at_us", type_=BigInteger),
)
_HAS_NO_HOST = or_(
    runs.c.gateway.is_(None), runs.c.gateway == bindparam("own", type_=String), runs.c.gateway.not_in(_LIVE)
)
_READY = _unhosted((runs.c.status == "waiting") & (~_ASKED | runs.c.cancel_us.is_not(None)))
_ABANDONED = _unhosted((runs.c.status == "running") & _HAS_NO_HOST)


@dataclass(frozen=True)
class WaitingRun:
    """A run that can continue, and why; `gateway` is its last host if that is serving."""

    id: str
    thread: Thread
    gateway: str | None
    epoch: int
    because: Because
    cancelled: bool = False


@dataclass(frozen=True)
class ClaimedRun:
    """A claimed run: the state that it continues from, if any, and the number of its last event."""

    claim: Claim
    checkpoint: str | None
    last_sequence: int


@dataclass(frozen=True)
class WaitingCount:
    """How many runs and approvals of all tenants wait."""

    runs: int
    approvals: int


async def count_waiting(database: Database) -> WaitingCount:
    """Count what waits now."""
    waiting = await database.scalar(select(func.count()).select_from(runs).where(runs.c.status == "waiting"))
    asked = await database.scalar(select(func.count()).select_from(approvals).where(approvals.c.status == PENDING))
    return WaitingCount(int(waiting), int(asked))


class WaitingStore(Queries):
    """Typed access to unhosted runs; with `engine`, only those whose workspace is there or nowhere yet."""

    def __init__(
        self, database: Database, *, gateway: str | None = None, engine: str | None = None, clock: NowUs = now_us
    ) -> None:
        super().__init__(database, clock, gateway=gateway)
        self._engine = engine

    async def ready(self) -> Sequence[WaitingRun]:
        """Return waiting runs without pending approvals in time, and those whose end was requested."""
        return await self._found(_READY, {}, waited=True)

    async def abandoned(self) -> Sequence[WaitingRun]:
        """Return running runs whose gateway has no lease, or is this one."""
        return await self._found(_ABANDONED, {"own": self.gateway}, waited=False)

    async def _found(self, query: Prepared, more: Mapping[str, str | None], *, waited: bool) -> Sequence[WaitingRun]:
        asked = {"at_us": self.clock(), "here": self._engine, **more}
        return [
            WaitingRun(
                row.id,
                Thread(row.thread_id, row.tenant, row.name),
                row.gateway if row.serves else None,
                row.epoch,
                _because(waited=waited, hosted=row.gateway is not None, epoch=row.epoch),
                row.cancel_us is not None,
            )
            for row in await self._database.found(query, asked)
        ]

    async def serves(self, engine: str) -> bool:
        query = select(gateways.c.id).where(gateways.c.engine == engine, gateways.c.expires_us > self.clock())
        return bool(await self._database.rows(query.limit(1)))

    async def placed(self, tenant: str) -> int:
        """Return how many runs of a tenant are recorded for other gateways and not taken yet."""
        unhosted = (runs.c.status == "running") & runs.c.gateway.is_(None) & (runs.c.epoch == 0)
        return int(await self._database.scalar(select(func.count()).where(runs.c.tenant == tenant, unhosted)))

    async def in_thread(self, thread: Thread) -> str | None:
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status == "waiting")
        run_id: str | None = await self._database.scalar(query)
        return run_id

    @transaction
    def claim(self, connection: Connection, run: WaitingRun) -> ClaimedRun | None:
        """Claim a run for this gateway; None if another was first, or the run is over."""
        status = "waiting" if run.because == "approval" else "running"
        seen = (runs.c.id == run.id) & (runs.c.epoch == run.epoch) & (runs.c.status == status)
        taken = update(runs).where(seen).values(status="running", gateway=self.gateway, epoch=run.epoch + 1)
        if not connection.execute(taken).rowcount:
            return None
        query = select(runs.c.checkpoint, runs.c.last_sequence).where(runs.c.id == run.id)
        row = connection.execute(query).one()
        if run.because not in ("approval", "placed"):
            entries = run_changed(connection, "run_taken_over", run.id, details={"because": run.because})
            self.audit.append(connection, *entries)
        return ClaimedRun(Claim(run.id, run.epoch + 1), row.checkpoint, row.last_sequence)

    @transaction
    def end(self, connection: Connection, run_id: str, finished: Event) -> bool:
        """End a waiting run; return whether it was waiting."""
        payload = json.dumps(finished.payload)
        now = self.clock()
        waiting = (runs.c.id == run_id) & (runs.c.status == "waiting")
        changes = {**finish_changes(finished, now), "last_sequence": runs.c.last_sequence + 1}
        if not connection.execute(update(runs).where(waiting).values(**changes)).rowcount:
            return False
        sequence = connection.execute(select(runs.c.last_sequence).where(runs.c.id == run_id)).scalar_one()
        row = {"run_id": run_id, "sequence": sequence, "type": finished.type, "at_us": now, "payload": payload}
        connection.execute(insert(events), row)
        self.audit.append(connection, *run_changed(connection, "run_finished", run_id))
        return True


def _because(*, waited: bool, hosted: bool, epoch: int) -> Because:
    if waited:
        return "approval"
    if hosted:
        return "gateway_lost"
    return "gateway_stopped" if epoch else "placed"  # handing a run over increases its epoch
