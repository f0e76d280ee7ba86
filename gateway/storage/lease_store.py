"""The leases of gateway processes, and the cleanup after processes whose lease expired.

Times are those of the processes' clocks. Gateways that take over each other's runs share a Docker engine, and so
usually a machine and its clock. Otherwise, a clock that is ahead by more than a lease's length takes over runs whose
gateway lives. That costs an interruption, but nothing happens twice: the previous gateway can no longer write.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import BindParameter, Connection, Select, bindparam, delete, insert, or_, select, update

from gateway.storage.call_journal import interrupt_calls
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import gateways, holds, tool_calls

# Every gateway executes both all the time.
_RENEW = Prepared(
    update(gateways)
    .where(gateways.c.id == bindparam("whose"))
    .values({name: bindparam(name) for name in ("engine", "channels", "address", "expires_us")})
)
_OVER = Prepared(select(gateways.c.id).where(gateways.c.expires_us <= bindparam("at_us")).limit(1))


def live_gateways(now_us: int | BindParameter[int]) -> Select[tuple[str]]:
    """Select the ids of the processes with a valid lease."""
    return select(gateways.c.id).where(gateways.c.expires_us > now_us)


class LeaseStore(Queries):
    """Typed access to the leases."""

    @transaction
    def take(
        self,
        connection: Connection,
        id_: str,
        length_us: int,
        *,
        engine: str = "",
        channels: str = "",
        address: str = "",
        started_us: int = 0,
    ) -> None:
        now = self.clock()
        row = {"engine": engine, "channels": channels, "address": address, "expires_us": now + length_us}
        if not _RENEW.execute(connection, {**row, "whose": id_}).rowcount:
            connection.execute(insert(gateways).values(id=id_, started_us=started_us or now, **row))

    async def end(self, ids: Collection[str]) -> None:
        """End leases at once, for processes that are known to be gone."""
        if ids:
            await self._database.write((delete(gateways).where(gateways.c.id.in_(list(ids))), None))

    async def reap(self, *, all_: bool = False) -> int:
        """Clean up after processes without a valid lease; return how many services' calls were interrupted.

        Their leases and quota holds are deleted, and their calls outside runs are interrupted. Without `all_`, which
        searches all calls, this happens only if there is an expired lease. Runs are left to the gateway that hosts them
        next.
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
            return interrupt_calls(connection, self.audit, executing, now)

        return await self._database.transact(work)
