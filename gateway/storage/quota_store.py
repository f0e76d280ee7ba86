"""Use of tenants' quotas, counted so that several gateways on one database together never exceed them.

A counter counts within one window of the clock. A hold is one of a limited number of concurrent uses; a gateway's holds
are released when its lease has expired (waiting_store.py). Everything that is taken together is taken in one
transaction, all or nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, or_, select, text, update

from gateway.errors import QuotaExceeded
from gateway.storage.database import Database
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.tables import counters, holds, runs, storage_use
from gateway.support.clock import NowUs, now_us

_NAME = attrgetter("name")
# Windows kept of a counter: the current one, and the previous one for gateways whose clocks are behind.
_KEPT_WINDOWS = 2

# Both databases lock the row before they compare; if the condition does not hold, no row is changed.
_ADDING = (
    "INSERT INTO counters (tenant, name, window_us, used) VALUES (:tenant, :name, :window_us, :amount) "
    "ON CONFLICT (tenant, name, window_us) DO UPDATE SET used = counters.used + excluded.used"
)
_ADD = text(_ADDING)
_TAKE = text(f"{_ADDING} WHERE counters.used + excluded.used <= :limit")
# Holds are counted, and the next one has no row yet: a transaction that counts them locks this counter first.
_LOCK = {"window_us": 0, "amount": 0}
_STORED = Prepared(select(storage_use.c.threads, storage_use.c.bytes).where(storage_use.c.tenant == bindparam("whose")))


@dataclass(frozen=True)
class Take:
    """An amount of a quota in the window that starts at `window_us` and is `length_us` long.

    An amount of 0 takes nothing, and is refused once the limit is reached.
    """

    name: str
    window_us: int
    length_us: int
    amount: int
    limit: int


@dataclass(frozen=True)
class Hold:
    """One of `limit` concurrent uses. A run's hold has the run's id, and runs without a hold count as well."""

    id: str
    name: str
    limit: int
    is_run: bool = False


class _Refused(Exception):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names


class QuotaStore(Queries):
    """Counters and holds of all tenants; holds belong to `gateway`."""

    def __init__(self, database: Database, gateway: str, *, clock: NowUs = now_us) -> None:
        super().__init__(database, clock, gateway=gateway)
        self._newest: dict[tuple[str, str], int] = {}

    async def take(self, tenant: str, takes: Sequence[Take] = (), holding: Sequence[Hold] = ()) -> Sequence[str]:
        """Take everything, or nothing and return the names of the quotas that are used up."""

        def work(connection: Connection) -> None:
            # In the same order everywhere, so that transactions do not deadlock.
            refused = [take.name for take in sorted(takes, key=_NAME) if not _took(connection, tenant, take)]
            refused += [hold.name for hold in sorted(holding, key=_NAME) if not self._hold(connection, tenant, hold)]
            if refused:
                raise _Refused(refused)
            self._forget_old(connection, tenant, takes)

        try:
            await self._database.transact(work)
        except _Refused as refused:
            return refused.names
        return ()

    @transaction
    def add(self, connection: Connection, tenant: str, takes: Sequence[Take]) -> None:
        """Count what was used already, even past its limit."""
        for take in sorted(takes, key=_NAME):
            connection.execute(_ADD, _row(tenant, take))
        self._forget_old(connection, tenant, takes)

    @transaction
    def give_back(self, connection: Connection, tenant: str, takes: Sequence[Take]) -> None:
        for take in sorted(takes, key=_NAME):
            enough = _is_of(tenant, take) & (counters.c.used >= take.amount)
            connection.execute(update(counters).where(enough).values(used=counters.c.used - take.amount))

    async def used(self, tenant: str, windows: Mapping[str, int]) -> Mapping[str, int]:
        if not windows:
            return {}
        asked = [(counters.c.name == name) & (counters.c.window_us == at_us) for name, at_us in windows.items()]
        query = select(counters.c.name, counters.c.used).where(counters.c.tenant == tenant, or_(*asked))
        found = {row.name: row.used for row in await self._database.rows(query)}
        return {name: found.get(name, 0) for name in windows}

    async def stored(self, tenant: str) -> tuple[int, int]:
        """Return a tenant's number of threads, and how many bytes are stored of it."""
        found = await self._database.look(_STORED, {"whose": tenant})
        return (found[0].threads, found[0].bytes) if found else (0, 0)

    async def release(self, ids: Collection[str]) -> None:
        if ids:
            mine = holds.c.id.in_(ids) & (holds.c.gateway == self.gateway)
            await self._database.write((delete(holds).where(mine), None))

    def _hold(self, connection: Connection, tenant: str, hold: Hold) -> bool:
        connection.execute(_ADD, {"tenant": tenant, "name": hold.name, **_LOCK})
        count = connection.execute(_holds(tenant, hold.name)).scalar_one()
        if hold.is_run:
            count += connection.execute(_runs_without_a_hold(tenant, hold.name, hold.id)).scalar_one()
        if count >= hold.limit:
            return False
        # A run that waited may continue here before its previous gateway has released its hold.
        connection.execute(delete(holds).where(holds.c.id == hold.id))
        row = {"id": hold.id, "tenant": tenant, "name": hold.name, "gateway": self.gateway, "since_us": self.clock()}
        connection.execute(insert(holds), row)
        return True

    def _forget_old(self, connection: Connection, tenant: str, takes: Sequence[Take]) -> None:
        """Delete old windows of a counter when it enters a new one."""
        for take in takes:
            if take.window_us > self._newest.get((tenant, take.name), 0):
                of_name = (counters.c.tenant == tenant) & (counters.c.name == take.name) & (counters.c.window_us > 0)
                old = of_name & (counters.c.window_us < take.window_us - _KEPT_WINDOWS * take.length_us)
                connection.execute(delete(counters).where(old))
                self._newest[tenant, take.name] = take.window_us


def refuse_more_threads(connection: Connection, tenant: str, limit: int) -> None:
    """Raise QuotaExceeded if a tenant has that many threads, in the transaction that creates one more."""
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
    return (connection.execute(select(counters.c.used).where(_is_of(tenant, take))).scalar() or 0) < take.limit


def _is_of(tenant: str, take: Take) -> ColumnElement[bool]:
    columns = counters.c
    return (columns.tenant == tenant) & (columns.name == take.name) & (columns.window_us == take.window_us)


def _row(tenant: str, take: Take) -> dict[str, str | int]:
    return {"tenant": tenant, "name": take.name, "window_us": take.window_us, "amount": take.amount}


def _holds(tenant: str, name: str) -> Select[int]:
    return select(func.count()).select_from(holds).where(holds.c.tenant == tenant, holds.c.name == name)


def _runs_without_a_hold(tenant: str, name: str, but: str) -> Select[int]:
    """Count the runs under way that began before there was such a quota."""
    with_one = select(holds.c.id).where(holds.c.tenant == tenant, holds.c.name == name)
    return (
        select(func.count())
        .select_from(runs)
        .where(runs.c.tenant == tenant, runs.c.status == "running", runs.c.id != but, runs.c.id.not_in(with_one))
    )
