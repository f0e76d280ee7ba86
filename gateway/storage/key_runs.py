"""The runs of a key that are under way: they outlive it, for a run needs no credential once it was started."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.run_audit import run_changed
from gateway.storage.tables import RUNS_UNDER_WAY, runs
from gateway.support.clock import NowUs, now_us


class KeyRuns:
    """Typed access to the runs that a tenant's credential started, by what is shown of it."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._audit = AuditStore(database, clock)
        self._clock = clock

    async def count(self, tenant: str, shown: str) -> int:
        """Return how many are under way."""
        query = select(func.count().label("runs")).where(_under_way(tenant, shown))
        return int((await self._database.rows(query))[0].runs)

    async def cancel(self, tenant: str, shown: str, *, by: str) -> int:
        """Ask for the end of all that are under way, wherever they are; return how many are, asked before or not."""

        def work(connection: Connection) -> int:
            query = select(runs.c.id, runs.c.cancel_us).where(_under_way(tenant, shown))
            found = connection.execute(query.with_for_update()).all()
            for run_id in [row.id for row in found if row.cancel_us is None]:
                connection.execute(update(runs).where(runs.c.id == run_id).values(cancel_us=self._clock()))
                self._audit.append(connection, entries=run_changed(connection, "run_cancelled", run_id, by=by))
            return len(found)

        return await self._database.transact(work)


def _under_way(tenant: str, shown: str) -> ColumnElement[bool]:
    return and_(runs.c.tenant == tenant, runs.c.started_by == shown, runs.c.status.in_(RUNS_UNDER_WAY))
