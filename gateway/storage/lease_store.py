"""The leases of the processes that serve, and the end of what those left behind whose lease is over.

Times are those of the processes' clocks. Gateways that take each other's runs over share a Docker engine, and so as a
rule a machine and its clock; where they do not, a clock that is ahead by more than a lease's length takes over runs
whose gateway lives. That costs an interruption, and nothing twice: the one that was robbed writes nothing any more.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import BindParameter, Connection, Select, bindparam, delete, insert, or_, select, update

from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.interrupted_calls import interrupt_calls
from gateway.storage.prepared import Prepared
from gateway.storage.tables import gateways, holds, tool_calls
from gateway.support.clock import NowUs, now_us

# Every gateway writes the one and asks the other again and again.
_RENEW = Prepared(
    update(gateways)
    .where(gateways.c.id == bindparam("whose"))
    .values({name: bindparam(name) for name in ("engine", "channels", "address", "expires_us")})
)
_OVER = Prepared(select(gateways.c.id).where(gateways.c.expires_us <= bindparam("at_us")).limit(1))


def live_gateways(now_us: int | BindParameter[int]) -> Select[tuple[str]]:
    """Select the ids of the processes that serve."""
    return select(gateways.c.id).where(gateways.c.expires_us > now_us)


class LeaseStore:
    """Typed access to the leases."""

    def __init__(self, database: Database, *, clock: NowUs = now_us) -> None:
        self._database = database
        self._audit = AuditStore(database, clock)
        self.clock = clock

    async def take(
        self, id_: str, length_us: int, *, engine: str = "", channels: str = "", address: str = "", started_us: int = 0
    ) -> None:
        """Write or renew a process' lease: it lasts `length_us` from now."""

        def work(connection: Connection) -> None:
            now = self.clock()
            row = {"engine": engine, "channels": channels, "address": address, "expires_us": now + length_us}
            if not _RENEW.execute(connection, {**row, "whose": id_}).rowcount:
                connection.execute(insert(gateways).values(id=id_, started_us=started_us or now, **row))

        await self._database.transact(work)

    async def end(self, ids: Collection[str]) -> None:
        """End leases at once, as those who know that these processes are gone."""
        if ids:
            await self._database.write((delete(gateways).where(gateways.c.id.in_(list(ids))), None))

    async def reap(self, *, all_: bool = False) -> int:
        """Settle what processes without a lease left behind; return how many services' calls that were.

        Their leases go, what they held of quotas is free, and calls that belong to no run are interrupted. Without
        `all_` it is done only where a lease is there that is over: the search goes through all calls. Runs are not
        settled here: who hosts them next does it.
        """
        now = self.clock()
        if not all_ and not await self._database.look(_OVER, {"at_us": now}):
            return 0

        def work(connection: Connection) -> int:
            connection.execute(delete(gateways).where(gateways.c.expires_us <= now))
            live = select(gateways.c.id)
            connection.execute(delete(holds).where(holds.c.gateway.not_in(live)))
            lost = or_(tool_calls.c.gateway.is_(None), tool_calls.c.gateway.not_in(live))
            executing = (tool_calls.c.state == "executing") & tool_calls.c.run_id.is_(None) & lost
            return interrupt_calls(connection, self._audit, executing, now)

        return await self._database.transact(work)
