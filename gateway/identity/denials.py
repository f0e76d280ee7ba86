"""Calls that no credential opened: told in the log and in the operators' audit, so many a minute and no more."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from gateway.errors import AirlockError
from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore

log = structlog.get_logger(__name__)
_WINDOW_S = 60.0
# Who guesses keys fills neither the log nor the audit, and one peer does not hide another.
_TOLD = 30
_TOLD_OF_A_PEER = 3
_SAID_CHARS = 300


class Denials:
    """Notes them without holding up the answer."""

    def __init__(self, audit: AuditStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._began = clock()
        self._told: Counter[str] = Counter()
        self._untold = 0
        self._writing: set[asyncio.Task[None]] = set()

    def note(self, peer: str, said: str, noted: Mapping[str, str] = MappingProxyType({})) -> None:
        """Take note of a call from a peer, as grpc names it, of what it was told, and of what operators are told.

        A key that is known, but over, is counted by itself: guesses from the same address do not hide it.
        """
        now = self._clock()
        if now - self._began >= _WINDOW_S:
            self._began = now
            self._told.clear()
        whose = noted.get("key_id") or peer.rpartition(":")[0]  # a peer has as many ports as it likes
        if self._told.total() >= _TOLD or self._told[whose] >= _TOLD_OF_A_PEER:
            self._untold += 1
            return
        self._told[whose] += 1
        untold, self._untold = self._untold, 0
        log.warning("denied", peer=peer, why=said[:_SAID_CHARS], untold_before=untold, **noted)
        entry = AuditEntry(
            tenant=OPERATORS,
            kind="denied",
            actor="nobody",
            details={"peer": peer[:_SAID_CHARS], "why": said[:_SAID_CHARS], "untold_before": untold, **noted},
        )
        task = asyncio.create_task(self._write(entry), name="audit of a denied call")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, entry: AuditEntry) -> None:
        try:
            await self._audit.write(entry)
        except AirlockError as error:
            log.warning("a denied call is not in the audit", error=str(error))
