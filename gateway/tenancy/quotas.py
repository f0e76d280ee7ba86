"""Quotas and rates: what all runs and calls of a tenant may use together, exact over all gateways of a database.

What is known before it is used is taken before: a run's place, a tool call's place in its minute. Every judged call has
a place, since judging, journaling and asking costs as much for a refused one. Tokens, money and bytes are known only
afterwards: they are checked before and counted after, so what is under way may end past the limit. Windows are minutes,
hours and days of the clock in UTC. What is not limited is not counted, and costs no query. Stored bytes are counted by
the database and read every two seconds, so a tenant may exceed that quota by what it stores meanwhile.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from gateway.errors import Overloaded, QuotaExceeded, Unavailable
from gateway.policy.decision import RuleLimit
from gateway.policy.document import QuotasSection
from gateway.storage.quota_store import Hold, QuotaStore, Take
from gateway.support.clock import NowUs, now_us

RUNS_AT_ONCE = "runs_at_once"
TOOL_CALLS = "tool_calls_per_minute"
SANDBOXES = "sandboxes_per_minute"
TOKENS = "tokens_per_day"
COST = "cost_usd_per_day"
BYTES = "bytes_per_day"
STORED = "stored_bytes"

_MINUTE_S = 60
_DAY_S = 86_400
_WINDOWS_S = {TOOL_CALLS: _MINUTE_S, SANDBOXES: _MINUTE_S, TOKENS: _DAY_S, COST: _DAY_S, BYTES: _DAY_S}
# Money is counted in whole millionths of a dollar, as sums of floats drift.
_MICRO = 1_000_000
_US_PER_S = 1_000_000
# How long a reading of what is stored is used before the database is asked again.
_STORED_KNOWN_S = 2.0
_TENANTS_KNOWN = 10_000
# Past that quota, for reading, listing and removing files: some thousand calls.
_RESERVE_BYTES = 1024 * 1024
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TakenQuota:
    """What a tool call under way has taken."""

    tenant: str
    takes: Sequence[Take]
    hold_ids: Sequence[str]


@dataclass
class CallQuota:
    """One tool call's part of the quotas; its caller keeps it until the call ends. `taken` is None until it takes."""

    call_id: str
    taken: TakenQuota | None = None


class Quotas:
    """Takes and counts for all tenants of a gateway."""

    def __init__(
        self, store: QuotaStore, *, clock: NowUs = now_us, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is the time of day, which windows begin by; `monotonic_s` measures how old a reading is."""
        self._store = store
        self._clock = clock
        self._monotonic_s = monotonic_s
        # Of calls that were judged and will not run: their run waits.
        self._to_give_back: list[TakenQuota] = []
        self._run_holds: set[str] = set()
        # What the database did not let us release yet.
        self._unreleased: set[str] = set()
        # How many bytes are stored of each tenant, and when that was read.
        self._stored: dict[str, tuple[int, float]] = {}

    # --- what is stored ---

    async def check_stored(self, tenant: str, quotas: QuotasSection, *, reserved: bool = False) -> None:
        """Raise QuotaExceeded if as much is stored of a tenant as may be.

        With `reserved` a little more is allowed: a tenant must reach its files, and their journal takes some space.
        """
        now_s, limit = self._monotonic_s(), quotas.stored_bytes + (_RESERVE_BYTES if reserved else 0)
        stored, read_s = self._stored.get(tenant, (0, -math.inf))
        if now_s - read_s > _STORED_KNOWN_S or stored >= limit:
            _, stored = await self._store.stored(tenant)
            if len(self._stored) >= _TENANTS_KNOWN:
                self._stored.clear()
            self._stored[tenant] = stored, now_s
        if stored >= limit:
            raise QuotaExceeded(
                f"{STORED}: this tenant stores {stored:,} bytes of messages, events and journal, and its quota is "
                f"{quotas.stored_bytes:,}: delete threads (`airlock thread delete`), or ask the operator to "
                "set `retention`",
                quota=STORED,
                limit=str(quotas.stored_bytes),
            )

    # --- runs ---

    async def hold_run(self, tenant: str, run_id: str, quotas: QuotasSection) -> None:
        """Take a run's place, before anything of the run is made. Raises QuotaExceeded."""
        await self.check_stored(tenant, quotas)
        if (limit := quotas.runs_at_once) is None:
            return
        await self._release(())
        self._run_holds.add(run_id)
        try:
            refused = await self._store.take(tenant, holding=(Hold(run_id, RUNS_AT_ONCE, limit, is_run=True),))
        except BaseException:
            # The writer has begun, even if the caller was cancelled.
            await asyncio.shield(self.release_run(run_id))
            raise
        if refused:
            self._run_holds.discard(run_id)
            raise QuotaExceeded(
                f"{RUNS_AT_ONCE}: this tenant has {limit} active runs, and its quota is {limit}: wait for one to "
                "end or cancel one",
                quota=RUNS_AT_ONCE,
                limit=str(limit),
            )

    async def release_run(self, run_id: str) -> None:
        """Give a run's place back when it ended or waits, and what was given up by calls."""
        while self._to_give_back:
            taken = self._to_give_back.pop()
            await self._release(taken.hold_ids)
            if not taken.takes:
                continue
            try:
                await self._store.give_back(taken.tenant, taken.takes)
            except Unavailable as error:
                log.warning("a quota stays used", tenant=taken.tenant, run_id=run_id, error=str(error))
        if run_id in self._run_holds:
            self._run_holds.discard(run_id)
            await self._release((run_id,))

    # --- tool calls ---

    async def take_place(self, tenant: str, quotas: QuotasSection, name: str = TOOL_CALLS) -> None:
        """Take a place in the minute, of calls that are judged and do not run or of SANDBOXES. Raises QuotaExceeded."""
        limit = _limits(quotas, name).get(name)
        if limit is None:
            return
        place = _take(name, at_us := self._clock(), 1, limit)
        if await self._store.take(tenant, (place,)):
            raise _used_up((name,), {name: place}, {}, at_us)

    async def take_call(
        self,
        tenant: str,
        call: CallQuota,
        limits: Iterable[RuleLimit],
        quotas: QuotasSection,
        *,
        has_place: bool = False,
    ) -> None:
        """Take what a call is about to use; if refused, only its place, unless it `has_place`. Raises QuotaExceeded."""
        at_us = self._clock()
        asked: dict[str, RuleLimit | None] = {}
        takes: list[Take] = []
        holds: list[Hold] = []
        if quotas.tool_calls_per_minute is not None and not has_place:
            takes.append(_take(TOOL_CALLS, at_us, 1, quotas.tool_calls_per_minute))
        if quotas.bytes_per_day is not None:
            takes.append(_take(BYTES, at_us, 0, quotas.bytes_per_day))
        for limit in limits:
            if limit.calls is not None and limit.per_s is not None:
                takes.append(_take(f"rule:{limit.rule}:{limit.per_s}", at_us, 1, limit.calls, limit.per_s))
                asked[takes[-1].name] = limit
            if limit.at_once is not None:
                holds.append(Hold(f"{call.call_id}.{len(holds)}"[-64:], f"rule:{limit.rule}:at_once", limit.at_once))
                asked[holds[-1].name] = limit
        if not takes and not holds:
            return
        await self._release(())
        before = call.taken
        if before is not None and before.hold_ids:
            holds = []  # a ring makes the same call again, which is under way already
        # Before the writing: a caller that is cancelled meanwhile gives back what may have been taken.
        ids = (*(before.hold_ids if before else ()), *(hold.id for hold in holds))
        call.taken = TakenQuota(tenant, [take for take in takes if take.amount], ids)
        refused = await self._store.take(tenant, takes, holds)
        if not refused:
            return
        call.taken = before
        if place := [take for take in takes if take.name == TOOL_CALLS and take.name not in refused]:
            await self._store.take(tenant, place)
        raise _used_up(refused, {take.name: take for take in takes}, asked, at_us)

    async def end_call(self, call: CallQuota) -> None:
        """Release a call's places among concurrent ones; what it used stays used."""
        taken, call.taken = call.taken, None
        if taken is not None:
            await self._release(taken.hold_ids)

    def give_up_call(self, call: CallQuota) -> None:
        """Give back what a call took that will not run now, with the next run that is released."""
        if call.taken is not None:
            self._to_give_back.append(call.taken)
            call.taken = None

    # --- what is known only afterwards ---

    async def check_inference(self, tenant: str, quotas: QuotasSection) -> QuotaExceeded | None:
        """Return why the model must not be asked now; None when it may be."""
        try:
            await self.check_stored(tenant, quotas)
        except QuotaExceeded as full:
            return full
        return await self._spent(tenant, quotas, TOKENS, COST)

    async def check_bytes(self, tenant: str, quotas: QuotasSection) -> None:
        """Raise QuotaExceeded once the day's bytes are used up."""
        if (refused := await self._spent(tenant, quotas, BYTES)) is not None:
            raise refused

    async def _spent(self, tenant: str, quotas: QuotasSection, *names: str) -> QuotaExceeded | None:
        """Return the refusal if one of these quotas is used up, else None."""
        at_us = self._clock()
        takes = {name: _take(name, at_us, 0, limit) for name, limit in _limits(quotas, *names).items()}
        if not takes:
            return None
        used = await self._store.used(tenant, {name: take.window_us for name, take in takes.items()})
        refused = [name for name, take in takes.items() if used[name] >= take.limit]
        return _used_up(refused, takes, {}, at_us) if refused else None

    async def add(self, tenant: str, quotas: QuotasSection, amounts: Mapping[str, int]) -> None:
        """Count TOKENS, of input and output, their COST in micro_usd(), or BYTES of results, files and processes."""
        at_us, limits = self._clock(), _limits(quotas, *amounts)
        takes = [_take(name, at_us, amounts[name], limit) for name, limit in limits.items() if amounts[name] > 0]
        if takes:
            await self._store.add(tenant, takes)

    async def _release(self, ids: Iterable[str]) -> None:
        """Release holds, with those that the database had refused to release before."""
        due = self._unreleased = self._unreleased | set(ids)
        try:
            await self._store.release(due)
        except Unavailable as error:
            log.warning("reservations will be released later", holds=len(due), error=str(error))
        else:
            self._unreleased = self._unreleased - due


def micro_usd(cost_usd: float) -> int:
    """Return an amount of money in whole millionths of a dollar."""
    return round(cost_usd * _MICRO)


def _limits(quotas: QuotasSection, *names: str) -> dict[str, int]:
    """Return the quotas of these that are set, in the unit they are counted in."""
    found = {name: limit for name in names if (limit := getattr(quotas, name)) is not None}
    return found | ({COST: max(1, micro_usd(found[COST]))} if COST in found else {})


def _take(name: str, at_us: int, amount: int, limit: int, length_s: int | None = None) -> Take:
    length_s = length_s or _WINDOWS_S[name]
    return Take(name, _start_us(at_us, length_s), length_s * _US_PER_S, amount, limit)


def _start_us(at_us: int, length_s: int) -> int:
    # 1970 began with a minute, an hour and a day, and UTC as computers count it has no leap seconds.
    return at_us - at_us % (length_s * _US_PER_S)


def _left_s(at_us: int, length_s: int) -> float:
    length_us = length_s * _US_PER_S
    return (length_us - at_us % length_us) / _US_PER_S


def _calls(number: int | None) -> str:
    return "1 call" if number == 1 else f"{number} calls"


def _used_up(
    refused: Sequence[str], takes: Mapping[str, Take], rules: Mapping[str, RuleLimit | None], at_us: int
) -> QuotaExceeded:
    """Return the error: it names what is free again last, as nothing passes before that is."""

    def left_s(name: str) -> float:
        return _left_s(at_us, takes[name].length_us // _US_PER_S) if name in takes else 0.0

    name = max(refused, key=left_s)
    rule = rules.get(name)
    if name not in takes and rule is not None:
        return QuotaExceeded(
            f"rule {rule.rule} allows {_calls(rule.at_once)} at once, and that many are running: try again when "
            "one has finished",
            quota="at_once",
            rule=rule.rule,
            limit=str(rule.at_once),
        )
    again = f"try again in {math.ceil(left_s(name))} s"
    if rule is not None:
        return QuotaExceeded(
            f"rule {rule.rule} allows {_calls(rule.calls)} per {rule.per_s} s, and that many were made; {again}",
            left_s(name),
            quota="rate",
            rule=rule.rule,
            limit=str(rule.calls),
        )
    limit = f"{takes[name].limit / _MICRO:g}" if name == COST else str(takes[name].limit)
    return QuotaExceeded(
        f"{name}: all {limit} of the tenant's quota are used; {again}", left_s(name), quota=name, limit=limit
    )


class TenantLimit:
    """Counts by tenant, up to `limit` for each; `what` names the counted thing in the error."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._counts: Counter[str] = Counter()

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count one more until the block ends; raises Overloaded at the limit."""
        if self._counts[tenant] >= self._limit:
            raise Overloaded(
                f"{self._limit} {self._what} of this tenant are in progress, the limit: wait for some to end"
            )
        self._counts[tenant] += 1
        try:
            yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]
