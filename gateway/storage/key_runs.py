"""The runs under way that a key started: they outlive it, since a run needs no credential once it has started."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from gateway.storage.queries import Queries, transaction
from gateway.storage.run_audit import run_changed
from gateway.storage.tables import RUNS_UNDER_WAY, runs


class KeyRuns(Queries):
    """Typed access to the runs that a tenant's credential started, by the part of it that is shown."""

    async def count(self, tenant: str, shown: str) -> int:
        """Return how many are under way."""
        return int(await self._database.scalar(select(func.count()).where(_under_way(tenant, shown))))

    @transaction
    def cancel(self, connection: Connection, tenant: str, shown: str, *, by: str) -> int:
        """Request the end of all that are under way; return how many there are, including those requested before."""
        query = select(runs.c.id, runs.c.cancel_us).where(_under_way(tenant, shown))
        found = connection.execute(query.with_for_update()).all()
        for run_id in [row.id for row in found if row.cancel_us is None]:
            connection.execute(update(runs).where(runs.c.id == run_id).values(cancel_us=self.clock()))
            self.audit.append(connection, entries=run_changed(connection, "run_cancelled", run_id, by=by))
        return len(found)


def _under_way(tenant: str, shown: str) -> ColumnElement[bool]:
    return and_(runs.c.tenant == tenant, runs.c.started_by == shown, runs.c.status.in_(RUNS_UNDER_WAY))
