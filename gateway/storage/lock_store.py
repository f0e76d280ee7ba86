"""The queries of locks on snapshots in a bucket (gateway/snapshots/locks.py).

The clocks of the gateways decide when a lock has expired: one that is ahead by most of a lock's length takes over locks
that are still held.
"""

from sqlalchemy import Connection, delete, insert, select, update

from gateway.errors import Unavailable
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import snapshot_locks

_LOCKS = snapshot_locks.c


class LockStore(Queries):
    """Typed access to the locks."""

    @transaction
    def take(self, connection: Connection, id_: str, scope: str, length_us: int, *, exclusive: bool) -> bool:
        """Take a lock, unless another excludes it; return whether it is taken. Expired ones are removed."""
        now = self.clock()
        connection.execute(delete(snapshot_locks).where(_LOCKS.expires_us <= now))
        others = select(_LOCKS.id).where(_LOCKS.scope == scope)
        if connection.execute(others if exclusive else others.where(_LOCKS.exclusive)).first() is not None:
            return False
        row = {"id": id_, "scope": scope, "exclusive": exclusive, "expires_us": now + length_us}
        connection.execute(insert(snapshot_locks), row)
        return True

    async def renew(self, id_: str, length_us: int) -> bool:
        """Let a lock expire later; return False if it is lost."""
        renewed = update(snapshot_locks).where(_LOCKS.id == id_).values(expires_us=self.clock() + length_us)
        return await self._execute(renewed) == 1

    async def release(self, id_: str) -> None:
        await self._execute(delete(snapshot_locks).where(_LOCKS.id == id_))


def refuse_lost(connection: Connection, lock: str) -> None:
    """Raise Unavailable if a lock is lost, in the transaction that depends on it. "" is a lock that cannot be."""
    if lock and connection.execute(select(_LOCKS.id).where(_LOCKS.id == lock)).first() is None:
        raise Unavailable(
            "the lock on the tenant's snapshots was lost: the snapshot took too long to renew it; try again"
        )
