"""Retention: every gateway looks now and then for what is older than the configuration keeps, and removes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import structlog

from gateway.config.retention_settings import RetentionSettings
from gateway.data_lifecycle.trusted_time import TrustedTime
from gateway.errors import Unavailable
from gateway.storage.retention_store import RetentionStore
from gateway.support.background import in_background

log = structlog.get_logger(__name__)
_LOOK_S = 600.0
_HOUR_US = 3600 * 1_000_000
_DAY_US = 24 * _HOUR_US


class Retention:
    """What is kept for how long. Several gateways may look at once: each takes what the others left."""

    def __init__(self, store: RetentionStore, settings: RetentionSettings, time: TrustedTime) -> None:
        self._store = store
        self._settings = settings
        self._time = time

    async def prune(self) -> Mapping[str, int]:
        """Remove what is too old; return how many rows of each kind. Nothing goes by a clock that jumped ahead."""
        kept, now = self._settings, await self._time.now_us()
        if now is None:
            log.warning(
                "retention waits: the clock is more than a day ahead of the last look at what is too old; if no "
                "gateway ran meanwhile there is nothing to do, else set the clock; it is trusted after a day of running"
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

    @contextlib.asynccontextmanager
    async def following(self, look_s: float = _LOOK_S) -> AsyncIterator[None]:
        """Prune again and again until the block ends, for the first time after a while."""
        async with in_background(self._prune_forever(look_s), "retention"):
            yield

    async def _prune_forever(self, look_s: float) -> None:
        while True:
            await asyncio.sleep(look_s)
            try:
                await self.prune()
            except Unavailable as error:
                log.warning("nothing is removed for now", error=str(error))
            except Exception:  # the next look may go well, and must come
                log.exception("retention failed")


def _before(now: int, length: float, unit_us: int) -> int:
    return now - round(length * unit_us)
