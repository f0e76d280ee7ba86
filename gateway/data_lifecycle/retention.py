"""Retention: every gateway periodically removes what is older than the configured retention times."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import structlog

from gateway.config.operation_settings import RetentionSettings
from gateway.data_lifecycle.trusted_time import TrustedTime
from gateway.errors import Unavailable
from gateway.storage.retention_store import RetentionStore
from gateway.support.background import Periodic

log = structlog.get_logger(__name__)
_LOOK_S = 600.0
_HOUR_US = 3600 * 1_000_000
_DAY_US = 24 * _HOUR_US


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
