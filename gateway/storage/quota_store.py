"""What tenants have used of their quotas, counted so that several gateways over one database never let too much pass.

A counter counts in one window of the clock. A hold is one of so many that may be had at once; its gateway's go when it
starts again. Whatever is taken together is taken in one transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, insert, or_, select, text, update

from gateway.errors import QuotaExceeded
from gateway.storage.database import Database
from gateway.storage.prepared import Prepared
from gateway.storage.tables import counters, holds, runs, snapshots, storage_use
from gateway.support.clock import NowUs, now_us

# Of a name only the window that is counted in is needed. The one before stays for gateways whose clocks are behind.
_KEPT_WINDOWS = 2

# Both databases lock the row first and compare then; where the condition does not hold, no row is touched.
_TAKE = text(
    "INSERT INTO counters (tenant, name, window_us, used) VALUES (:tenant, :name, :window_us, :amount) "
    "ON CONFLICT (tenant, name, window_us) DO UPDATE SET used = counters.used + excluded.used "
    "WHERE counters.used + excluded.used <= :limit"
)
_ADD = text(
    "INSERT INTO counters (tenant, name, window_us, used) VALUES (:tenant, :name, :window_us, :amount) "
    "ON CONFLICT (tenant, name, window_us) DO UPDATE SET used = counters.used + excluded.used"
)
# Holds are counted, and there is no row for the next one yet: who counts them locks this row until it has its own.
_LOCK = text(
    "INSERT INTO counters (tenant, name, window_us, used) VALUES (:tenant, :name, 0, 0) "
    "ON CONFLICT (tenant, name, window_us) DO UPDATE SET used = counters.used"
)
_GIVE_BACK = (
    update(counters)
    .where(
        counters.c.tenant == bindparam("whose"),
        counters.c.name == bindparam("of_name"),
        counters.c.window_us == bindparam("of_window_us"),
        counters.c.used >= bindparam("amount"),
    )
    .values(used=counters.c.used - bindparam("amount"))
)
_FORGET = delete(counters).where(
    counters.c.tenant == bindparam("whose"),
    counters.c.name == bindparam("of_name"),
    counters.c.window_us > 0,
    counters.c.window_us < bindparam("before_us"),
)
_STORED = Prepared(select(storage_use.c.threads, storage_use.c.bytes).where(storage_use.c.tenant == bindparam("whose")))


@dataclass(frozen=True)
class Take:
    """An amount of what may be used in a window that starts at `window_us` and is `length_us` long.

    An amount of 0 takes nothing: it is refused where the limit is reached.
    """

    name: str
    window_us: int
    length_us: int
    amount: int
    limit: int


@dataclass(frozen=True)
class Hold:
    """One of `limit` that may be held at once. A run's has the run's id, and runs without a hold count as well."""

    id: str
    name: str
    limit: int
    is_run: bool = False


class _Refused(Exception):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names


class QuotaStore:
    """Counters and holds of all tenants; `gateway` is whose the holds are."""

    def __init__(self, database: Database, gateway: str, *, clock: NowUs = now_us) -> None:
        self._database = database
        self._gateway = gateway
        self._clock = clock
        self._newest: dict[tuple[str, str], int] = {}

    async def take(self, tenant: str, takes: Sequence[Take] = (), held: Sequence[Hold] = ()) -> Sequence[str]:
        """Take all of it, or nothing and return the names of what is used up."""

        def work(connection: Connection) -> None:
            # In one order everywhere, so that no two transactions wait for each other.
            refused = [
                take.name for take in sorted(takes, key=lambda take: take.name) if not _took(connection, tenant, take)
            ]
            refused += [
                hold.name
                for hold in sorted(held, key=lambda hold: hold.name)
                if not self._held(connection, tenant, hold)
            ]
            if refused:
                raise _Refused(refused)
            self._forget_old(connection, tenant, takes)

        try:
            await self._database.transact(work)
        except _Refused as refused:
            return refused.names
        return ()

    async def add(self, tenant: str, takes: Sequence[Take]) -> None:
        """Count what was used already, also past its limit."""

        def work(connection: Connection) -> None:
            for take in sorted(takes, key=lambda take: take.name):
                connection.execute(_ADD, _row(tenant, take))
            self._forget_old(connection, tenant, takes)

        await self._database.transact(work)

    async def give_back(self, tenant: str, takes: Sequence[Take]) -> None:
        """Count again as unused what was taken and is not going to be used."""
        rows = [
            {"whose": tenant, "of_name": take.name, "of_window_us": take.window_us, "amount": take.amount}
            for take in sorted(takes, key=lambda take: take.name)
            if take.amount
        ]
        if rows:
            await self._database.write((_GIVE_BACK, rows))

    async def used(self, tenant: str, windows: Mapping[str, int]) -> Mapping[str, int]:
        """Return what was used in each of these windows, by their names."""
        if not windows:
            return {}
        asked = [and_(counters.c.name == name, counters.c.window_us == at_us) for name, at_us in windows.items()]
        query = select(counters.c.name, counters.c.used).where(counters.c.tenant == tenant, or_(*asked))
        found = {row.name: row.used for row in await self._database.rows(query)}
        return {name: found.get(name, 0) for name in windows}

    async def stored(self, tenant: str) -> tuple[int, int]:
        """Return how many threads a tenant has, and how many bytes are stored of it."""
        found = await self._database.look(_STORED, {"whose": tenant})
        return (found[0].threads, found[0].bytes) if found else (0, 0)

    async def snapshots(self, tenant: str) -> tuple[int, int]:
        """Return how many snapshots a tenant has, and how many bytes each added to the disk when it was taken, in all.

        What one that was deleted since had in common with others is not in it.
        """
        added = func.coalesce(func.sum(snapshots.c.stored_bytes), 0).label("added")
        query = select(func.count().label("snapshots"), added).where(snapshots.c.tenant == tenant)
        found = (await self._database.rows(query))[0]
        return int(found.snapshots), int(found.added)

    async def runs_at_once(self, tenant: str, name: str) -> int:
        """Return how many runs count as being under way."""
        query = select(func.count()).select_from(holds).where(holds.c.tenant == tenant, holds.c.name == name)
        held = (await self._database.rows(query))[0][0]
        without = (await self._database.rows(_runs_without_a_hold(tenant, name)))[0][0]
        return int(held + without)

    async def release(self, ids: Collection[str]) -> None:
        """Let holds go; the ones that this gateway does not hold are passed over."""
        if ids:
            mine = holds.c.id.in_(ids) & (holds.c.gateway == self._gateway)
            await self._database.write((delete(holds).where(mine), None))

    async def release_all(self) -> None:
        """Let go of what this gateway held when it stopped or was killed."""
        await self._database.write((delete(holds).where(holds.c.gateway == self._gateway), None))

    def _held(self, connection: Connection, tenant: str, hold: Hold) -> bool:
        connection.execute(_LOCK, {"tenant": tenant, "name": hold.name})
        query = select(func.count()).select_from(holds).where(holds.c.tenant == tenant, holds.c.name == hold.name)
        held = int(connection.execute(query).scalar_one())
        if hold.is_run:
            held += int(connection.execute(_runs_without_a_hold(tenant, hold.name, hold.id)).scalar_one())
        if held >= hold.limit:
            return False
        # A run that waited may go on here before the gateway that had it has let go.
        connection.execute(delete(holds).where(holds.c.id == hold.id))
        row = {"id": hold.id, "tenant": tenant, "name": hold.name, "gateway": self._gateway, "since_us": self._clock()}
        connection.execute(insert(holds), row)
        return True

    def _forget_old(self, connection: Connection, tenant: str, takes: Sequence[Take]) -> None:
        """Forget a name's old windows when it comes to a new one."""
        for take in takes:
            if take.window_us > self._newest.get((tenant, take.name), 0):
                before_us = take.window_us - _KEPT_WINDOWS * take.length_us
                connection.execute(_FORGET, {"whose": tenant, "of_name": take.name, "before_us": before_us})
                self._newest[tenant, take.name] = take.window_us


def refuse_more_threads(connection: Connection, tenant: str, limit: int) -> None:
    """Raise QuotaExceeded where a tenant has that many threads, in the transaction that makes one more."""
    threads = _STORED.execute(connection, {"whose": tenant}).scalar() or 0
    if threads >= limit:
        raise QuotaExceeded(
            f"threads: this tenant has {threads:,}, and its quota is {limit:,}: delete some (`airlock thread "
            "delete`) or reuse one",
            quota="threads",
            limit=str(limit),
        )


def _took(connection: Connection, tenant: str, take: Take) -> bool:
    if take.amount > take.limit:
        return False
    if take.amount:
        return connection.execute(_TAKE, {**_row(tenant, take), "limit": take.limit}).rowcount == 1
    query = select(counters.c.used).where(
        counters.c.tenant == tenant, counters.c.name == take.name, counters.c.window_us == take.window_us
    )
    return (connection.execute(query).scalar() or 0) < take.limit


def _row(tenant: str, take: Take) -> dict[str, str | int]:
    return {"tenant": tenant, "name": take.name, "window_us": take.window_us, "amount": take.amount}


def _runs_without_a_hold(tenant: str, name: str, but: str = "") -> Select[int]:
    """Count the runs under way that began when there was no such quota."""
    with_one = select(holds.c.id).where(holds.c.tenant == tenant, holds.c.name == name)
    return (
        select(func.count())
        .select_from(runs)
        .where(runs.c.tenant == tenant, runs.c.status == "running", runs.c.id != but, runs.c.id.not_in(with_one))
    )
