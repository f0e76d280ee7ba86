"""What runs use of models: by run, agent and model, and by day for each tenant.

A run's rows are written as totals, so that a write whose commit had no known result can be repeated; the days get the
difference, in the same transaction. They stay when retention or a deleted thread removes the run, and go with the
tenant.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from sqlalchemy import Connection, Row, func, select, text

from agent.messages import Usage
from gateway.storage.queries import Queries
from gateway.storage.tables import run_usage, usage_days

_TOKENS = tuple(name for name in Usage.model_fields if name != "cost_usd")
_USED = ("requests", *_TOKENS, "nano_usd")
_NANO = 1_000_000_000
# Of one row, so that no sum overflows whatever a model is said to cost: a million dollars.
_LIMIT_NANO_USD = 1_000_000 * _NANO
_DAY_US = 86_400_000_000
_AGENT_CHARS, _MODEL_CHARS = 64, 256
UsageGroup = Literal["day", "model", "agent"]
_GROUPS = {"day": usage_days.c.day_us, "model": usage_days.c.model, "agent": usage_days.c.agent}


@dataclass(frozen=True)
class Used:
    """A number of requests to models, and their usage."""

    requests: int = 0
    usage: Usage = field(default_factory=Usage)

    def __add__(self, other: "Used") -> "Used":
        return Used(self.requests + other.requests, self.usage + other.usage)

    @classmethod
    def of(cls, row: Row[Any], prefix: str = "") -> Self:
        counted = {name: int(getattr(row, f"{prefix}{name}") or 0) for name in _USED}
        requests, nano_usd = counted.pop("requests"), counted.pop("nano_usd")
        return cls(requests, Usage(**counted, cost_usd=nano_usd / _NANO))

    def columns(self, prefix: str = "") -> dict[str, int]:
        tokens = {name: getattr(self.usage, name) for name in _TOKENS}
        nano_usd = min(round(min(self.usage.cost_usd, _LIMIT_NANO_USD) * _NANO), _LIMIT_NANO_USD)
        counted = {"requests": self.requests, **tokens, "nano_usd": nano_usd}
        return {f"{prefix}{name}": value for name, value in counted.items()}


@dataclass(frozen=True)
class RunUse:
    """What an agent of a run has used of a model, and the estimate for its requests under way."""

    agent: str
    model: str
    used: Used = field(default_factory=Used)
    under_way: Used = field(default_factory=Used)
    first_token_us: int | None = None

    @property
    def first_token_ms(self) -> float | None:
        return None if self.first_token_us is None else self.first_token_us / 1000

    @classmethod
    def named(cls, agent: str, model: str) -> Self:
        return cls(agent[:_AGENT_CHARS], model[:_MODEL_CHARS])

    def settled(self) -> "RunUse":
        """Return it with the requests under way charged by their estimate: their answers will never come."""
        return replace(self, used=self.used + self.under_way, under_way=Used())


@dataclass(frozen=True)
class UsageRow:
    """What a tenant used in a group; a field that is not grouped by is None."""

    used: Used
    day_us: int | None = None
    model: str | None = None
    agent: str | None = None


_KEY = ("run_id", "agent", "model")
_OF_RUN = (*_KEY, *_USED, *(f"open_{name}" for name in _USED), "first_token_us")
_OF_DAY = ("tenant", "day_us", "agent", "model", *_USED)


def _insert(table: str, columns: Sequence[str], key: Sequence[str], changed: str) -> str:
    changes = ", ".join(f"{name} = {changed.format(name)}" for name in columns if name not in key)
    values = ", ".join(f":{name}" for name in columns)
    names, keys = ", ".join(columns), ", ".join(key)
    return f"INSERT INTO {table} ({names}) VALUES ({values}) ON CONFLICT ({keys}) DO UPDATE SET {changes}"  # noqa: S608 - names of ours


_PUT = text(_insert("run_usage", _OF_RUN, _KEY, "excluded.{0}"))
_ADD = text(_insert("usage_days", _OF_DAY, _OF_DAY[:4], "usage_days.{0} + excluded.{0}"))


def write_usage(connection: Connection, run_id: str, tenant: str, uses: Collection[RunUse], now_us: int) -> None:
    """Write totals of a run, and add to the tenant's day what they are more than before."""
    before = {(use.agent, use.model): use.used.columns() for use in read_usage(connection, run_id)}
    for use in uses:
        now = use.used.columns()
        named = {"run_id": run_id, "agent": use.agent, "model": use.model}
        row = {**named, **now, **use.under_way.columns("open_"), "first_token_us": use.first_token_us}
        connection.execute(_PUT, row)
        was = before.get((use.agent, use.model), {})
        more = {name: value - was.get(name, 0) for name, value in now.items()}
        if any(more.values()):
            day = {"tenant": tenant, "day_us": day_us(now_us), "agent": use.agent, "model": use.model}
            connection.execute(_ADD, {**day, **more})


def read_usage(connection: Connection, run_id: str) -> Sequence[RunUse]:
    """Return what a run has used so far."""
    return [_use(row) for row in connection.execute(select(run_usage).where(run_usage.c.run_id == run_id))]


def settle_lost(connection: Connection, run_id: str, tenant: str, now_us: int) -> Sequence[RunUse]:
    """Charge a run for the requests that its lost gateway had under way; return what it has used."""
    found = read_usage(connection, run_id)
    if lost := [use.settled() for use in found if use.under_way.requests]:
        write_usage(connection, run_id, tenant, lost, now_us)
    return [use.settled() for use in found]


def total_of(uses: Collection[RunUse]) -> Used:
    """Return the sum over agents and models."""
    return sum((use.used for use in uses), Used())


def _use(row: Row[Any]) -> RunUse:
    return RunUse(row.agent, row.model, Used.of(row), Used.of(row, "open_"), row.first_token_us)


def day_us(at_us: int) -> int:
    """Return the beginning of a time's day in UTC."""
    return at_us - at_us % _DAY_US


class UsageStore(Queries):
    """Reads what was used."""

    async def of_runs(self, run_ids: Collection[str]) -> Mapping[str, Sequence[RunUse]]:
        """Return what each of these runs has used, most first."""
        uses: dict[str, list[RunUse]] = {run_id: [] for run_id in run_ids}
        columns = run_usage.c
        query = select(run_usage).where(columns.run_id.in_(list(run_ids))).order_by(columns.requests.desc())
        for row in await self._database.rows(query) if run_ids else ():
            uses[row.run_id].append(_use(row))
        return uses

    async def totals(
        self, tenant: str, by: Collection[UsageGroup], *, since_us: int | None, until_us: int | None, limit: int
    ) -> Sequence[UsageRow]:
        """Return what a tenant used on the days from that of `since_us` to before `until_us`, grouped and sorted."""
        columns = usage_days.c
        groups = [column for name, column in _GROUPS.items() if name in by]
        sums = [func.sum(columns[name]).label(name) for name in _USED]
        query = select(*groups, *sums).where(columns.tenant == tenant)
        query = query.where(columns.day_us >= day_us(since_us)) if since_us is not None else query
        query = query.where(columns.day_us < until_us) if until_us is not None else query
        if groups:
            query = query.group_by(*groups).order_by(*groups)
        rows = await self._database.rows(query.limit(limit))
        found = [UsageRow(Used.of(row), **{group.name: getattr(row, group.name) for group in groups}) for row in rows]
        return [row for row in found if row.used.requests]

    async def knows(self, tenant: str) -> bool:
        """Return whether anything was used by a tenant."""
        return await self._has(usage_days.c.tenant, usage_days.c.tenant == tenant)
