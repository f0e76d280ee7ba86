"""The queries of hosting: the leases of gateway processes, and the runs without a host, which one gateway claims.

Times are those of the processes' clocks. Gateways that take over each other's runs share a Docker engine, and so
usually a machine and its clock. Otherwise, a clock that is ahead by more than a lease's length takes over runs whose
gateway lives. That costs an interruption, but nothing happens twice: the previous gateway can no longer write.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from agent.events import Event
from gateway.storage.approval_store import PENDING
from gateway.storage.call_journal import interrupt_calls
from gateway.storage.connection_store import interrupt_connections
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.run_writes import Claim, finish_changes, run_changed
from gateway.storage.tables import approvals, events, gateways, holds, open_connections, runs, threads, tool_calls
from gateway.storage.usage_store import RunUse, settle_lost
from gateway.support.clock import NowUs, now_us

_READY_LIMIT = 100
Because = Literal["approval", "gateway_lost", "gateway_stopped", "queued"]
"""Why a run can continue; a `queued` one was recorded for the gateways of another engine, and begins."""

# Every gateway executes both all the time.
_RENEW = Prepared(
    sa.update(gateways)
    .where(gateways.c.id == sa.bindparam("whose"))
    .values({name: sa.bindparam(name) for name in ("engine", "channels", "address", "expires_us")})
)
_OVER = Prepared(sa.select(gateways.c.id).where(gateways.c.expires_us <= sa.bindparam("at_us")).limit(1))


def _unhosted(which: sa.ColumnElement[bool]) -> Prepared:
    """Return the query for runs that can continue on engine `here` (NULL for any); it runs all the time.

    In turn, the oldest run of each tenant, then the second of each: runs that cannot continue, because of their
    tenant's quota or configuration, must not keep other tenants' runs out of the page.
    """
    here = sa.bindparam("here", type_=sa.String)
    turn = sa.func.row_number().over(partition_by=runs.c.tenant, order_by=runs.c.started_us)
    return Prepared(
        sa.select(runs.c.id, runs.c.tenant, runs.c.thread_id, runs.c.gateway, runs.c.epoch, runs.c.cancel_us)
        .add_columns(threads.c.name, runs.c.gateway.in_(_LIVE).label("serves"))
        .join(threads, runs.c.thread_id == threads.c.id)
        .where(which, sa.or_(here.is_(None), threads.c.engine.is_(None), threads.c.engine == here))
        .order_by(turn, runs.c.started_us)
        .limit(_READY_LIMIT)
    )


_LIVE = sa.select(gateways.c.id).where(gateways.c.expires_us > sa.bindparam("at_us", type_=sa.BigInteger))
_PENDING = approvals.c.status == PENDING
_ASKED = sa.exists().where(
    approvals.c.run_id == runs.c.id,
    _PENDING,
    approvals.c.expires_us > sa.bindparam("at_us", type_=sa.BigInteger),
)
_HAS_NO_HOST = sa.or_(
    runs.c.gateway.is_(None), runs.c.gateway == sa.bindparam("own", type_=sa.String), runs.c.gateway.not_in(_LIVE)
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
    """A claimed run: the state that it continues from, if any, the number of its last event, and what it has used."""

    claim: Claim
    checkpoint: str | None
    last_sequence: int
    used: Sequence[RunUse] = ()


async def count_waiting(database: Database) -> tuple[int, int]:
    """Return how many runs and approvals of all tenants wait now."""
    counts = (sa.select(sa.func.count()).where(runs.c.status == "waiting"), sa.select(sa.func.count()).where(_PENDING))
    waiting, asked = [int(await database.scalar(count)) for count in counts]
    return waiting, asked


class LeaseStore(Queries):
    """Typed access to the leases."""

    @transaction
    def take(
        self, connection: sa.Connection, /, id_: str, length_us: int, *, started_us: int = 0, **place: str
    ) -> None:
        """Take or extend a lease; `place` has the engine, the channels and the address."""
        now = self.clock()
        row = {"engine": "", "channels": "", "address": "", **place, "expires_us": now + length_us}
        if not _RENEW.execute(connection, {**row, "whose": id_}).rowcount:
            connection.execute(sa.insert(gateways).values(id=id_, started_us=started_us or now, **row))

    async def end(self, ids: Collection[str]) -> None:
        if ids:
            await self._database.write((sa.delete(gateways).where(gateways.c.id.in_(list(ids))), None))

    async def reap(self, *, all_: bool = False) -> int:
        """Clean up after processes without a valid lease; return how many services' calls were interrupted.

        Their leases and quota holds are deleted, and their connections and their calls outside runs are interrupted.
        Without `all_`, which searches all calls, this happens only if there is an expired lease. Runs are left to the
        gateway that hosts them next.
        """
        now = self.clock()
        if not all_ and not await self._database.look(_OVER, {"at_us": now}):
            return 0

        def work(connection: sa.Connection) -> int:
            connection.execute(sa.delete(gateways).where(gateways.c.expires_us <= now))
            live = sa.select(gateways.c.id)
            connection.execute(sa.delete(holds).where(holds.c.gateway.not_in(live)))
            interrupt_connections(connection, self.audit, open_connections.c.gateway.not_in(live))
            lost = sa.or_(tool_calls.c.gateway.is_(None), tool_calls.c.gateway.not_in(live))
            executing = (tool_calls.c.state == "executing") & tool_calls.c.run_id.is_(None) & lost
            return interrupt_calls(connection, self.audit, executing, now)

        return await self._database.transact(work)


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
        return await self._has(gateways.c.id, gateways.c.engine == engine, gateways.c.expires_us > self.clock())

    async def queued(self, tenant: str) -> int:
        """Return how many runs of a tenant are recorded for other gateways and not taken yet."""
        unhosted = (runs.c.status == "running") & runs.c.gateway.is_(None) & (runs.c.epoch == 0)
        return int(await self._database.scalar(sa.select(sa.func.count()).where(runs.c.tenant == tenant, unhosted)))

    async def unclaimed(self, run: WaitingRun) -> bool:
        """Return whether a run is as it was found: a cheap answer before claim(), which alone decides."""
        return await self._has(runs.c.id, _as_found(run))

    @transaction
    def claim(self, connection: sa.Connection, run: WaitingRun) -> ClaimedRun | None:
        """Claim a run for this gateway; None if another was first, or the run is over."""
        unclaimed = _as_found(run)
        taken = sa.update(runs).where(unclaimed).values(status="running", gateway=self.gateway, epoch=run.epoch + 1)
        if not connection.execute(taken).rowcount:
            return None
        query = sa.select(runs.c.checkpoint, runs.c.last_sequence).where(runs.c.id == run.id)
        row = connection.execute(query).one()
        if run.because not in ("approval", "queued"):
            entries = run_changed(connection, "run_taken_over", run.id, details={"because": run.because})
            self.audit.append(connection, *entries)
        used = settle_lost(connection, run.id, run.thread.tenant, self.clock())
        return ClaimedRun(Claim(run.id, run.epoch + 1), row.checkpoint, row.last_sequence, used)

    @transaction
    def end(self, connection: sa.Connection, run_id: str, finished: Event) -> bool:
        payload = json.dumps(finished.payload)
        now = self.clock()
        waiting = (runs.c.id == run_id) & (runs.c.status == "waiting")
        changes = {**finish_changes(finished, now), "last_sequence": runs.c.last_sequence + 1}
        if not connection.execute(sa.update(runs).where(waiting).values(**changes)).rowcount:
            return False
        sequence = connection.execute(sa.select(runs.c.last_sequence).where(runs.c.id == run_id)).scalar_one()
        row = {"run_id": run_id, "sequence": sequence, "type": finished.type, "at_us": now, "payload": payload}
        connection.execute(sa.insert(events), row)
        self.audit.append(connection, *run_changed(connection, "run_finished", run_id))
        return True


def _as_found(run: WaitingRun) -> sa.ColumnElement[bool]:
    status = "waiting" if run.because == "approval" else "running"
    return (runs.c.id == run.id) & (runs.c.epoch == run.epoch) & (runs.c.status == status)


def _because(*, waited: bool, hosted: bool, epoch: int) -> Because:
    if waited:
        return "approval"
    if hosted:
        return "gateway_lost"
    return "gateway_stopped" if epoch else "queued"  # handing a run over increases its epoch
