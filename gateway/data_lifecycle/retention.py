"""Retention: every gateway periodically removes what is older than the configured retention times.

A clock that jumps ahead must not delete recent data. Each look is recorded in the database that all gateways share.
Looks come every few minutes, so one that is more than a day after the last means that no gateway ran in between or that
a clock is wrong. The time is then trusted only after gateways have run for another day, in which an operator can
correct the clock; setting it back ends the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Self

import structlog

from gateway.config.operation_settings import RetentionSettings
from gateway.errors import Unavailable
from gateway.storage.database import Database, changed
from gateway.storage.retention_store import RetentionStore
from gateway.support.background import Periodic
from gateway.support.clock import NowUs

log = structlog.get_logger(__name__)
_LOOK_S = 600.0
_HOUR_US = 3600 * 1_000_000
_DAY_US = 24 * _HOUR_US
JUMP_US = _DAY_US
"""A look this much later than the last one is a jump, and gateways must run this long before it is trusted."""
_NAME = "retention_looks"


@dataclass(frozen=True)
class _Looks:
    """When a gateway last looked, and to which time the clock jumped, UTC microseconds since 1970; 0 for no jump.

    `stood_us` is how long gateways have run since the jump.
    """

    last_us: int
    jumped_us: int = 0
    stood_us: int = 0

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(*map(int, text.split()))

    def then(self, now_us: int) -> _Looks:
        passed_us = now_us - self.last_us
        if passed_us > JUMP_US:  # a further jump does not restart the wait of the first one
            return _Looks(now_us, self.jumped_us or now_us, self.stood_us)
        stood_us = self.stood_us + max(passed_us, 0)
        if now_us < self.jumped_us or stood_us >= JUMP_US or not self.jumped_us:
            return _Looks(now_us)
        return _Looks(now_us, self.jumped_us, stood_us)

    def __str__(self) -> str:
        return f"{self.last_us} {self.jumped_us} {self.stood_us}"


class TrustedTime:
    """The time of day, once it is trusted."""

    def __init__(self, database: Database, clock: NowUs) -> None:
        self._database = database
        self._clock = clock

    async def now_us(self) -> int | None:
        """Return UTC microseconds since 1970; None while the clock has jumped ahead and is not trusted."""
        now_us = self._clock()

        def look(before: str | None) -> str:
            return str(_Looks.of(before).then(now_us) if before is not None else _Looks(now_us))

        looks = _Looks.of(await changed(self._database, _NAME, look))
        return None if looks.jumped_us else now_us


class Retention:
    """Applies the retention times. Several gateways may prune at once; the result is the same."""

    def __init__(self, store: RetentionStore, settings: RetentionSettings, time: TrustedTime) -> None:
        self._store = store
        self._settings = settings
        self._time = time

    async def prune(self) -> Mapping[str, int]:
        """Remove what is too old; return how many rows of each kind. Does nothing while the clock is not trusted."""
        kept, now = self._settings, await self._time.now_us()
        if now is None:
            log.warning(
                "retention is paused: the clock is more than a day ahead of the last retention run; correct the "
                "clock, unless no gateway ran in that time; the clock is trusted after a day of running"
            )
            return {}
        removed = {
            "request_results": await self._store.forget_results(_before(now, kept.request_results_hours, _HOUR_US))
        }
        for name, days, prune in (
            ("events", kept.events_days, self._store.prune_events),
            ("runs", kept.runs_days, self._store.prune_runs),
            ("messages", kept.messages_days, self._store.prune_messages),
            ("tool_calls", kept.tool_calls_days, self._store.prune_tool_calls),
            ("grants", kept.approvals_days, self._store.prune_grants),
            ("approvals", kept.approvals_days, self._store.prune_approvals),
            ("policy_changes", kept.policy_changes_days, self._store.prune_policy_changes),
            ("sandbox_transitions", kept.sandbox_transitions_days, self._store.prune_transitions),
            ("audit_records", kept.audit_days, self._store.prune_audit),
        ):
            if days is not None:
                removed[name] = await prune(_before(now, days, _DAY_US))
        if any(removed.values()):
            log.info("what is too old was removed", **removed)
        return removed

    def following(self, look_s: float = _LOOK_S) -> AbstractAsyncContextManager[None]:
        """Prune every `look_s` seconds until the block ends; the first round waits one interval."""
        return Periodic(self.prune, look_s, "retention failed; the next round tries again", (Unavailable,)).running(
            "retention", at_once=False
        )


def _before(now: int, length: float, unit_us: int) -> int:
    return now - round(length * unit_us)
