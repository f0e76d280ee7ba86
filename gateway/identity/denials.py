"""Records denied calls in the log and the operators' audit, at a limited rate."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog
from pydantic import JsonValue

from gateway.errors import AirlockError
from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore

log = structlog.get_logger(__name__)
_WINDOW_S = 60.0
# A caller that guesses keys must neither fill the log and the audit nor hide the denials of another peer.
_RECORDED = 30
_RECORDED_PER_PEER = 3
_TEXT_CHARS = 300


class Denials:
    """Records denials without delaying the answer."""

    def __init__(self, audit: AuditStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._window_start = clock()
        self._recorded: Counter[str] = Counter()
        self._omitted = 0
        self._writing: set[asyncio.Task[None]] = set()

    def record(self, peer: str, why: str, details: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record a denied call: the peer as grpc names it, the caller's error, and details for operators alone.

        A revoked or expired key is counted by its id, so guesses from the same address do not hide it.
        """
        now = self._clock()
        if now - self._window_start >= _WINDOW_S:
            self._window_start = now
            self._recorded.clear()
        source = details.get("key_id") or peer.rpartition(":")[0]  # without the port
        if self._recorded.total() >= _RECORDED or self._recorded[source] >= _RECORDED_PER_PEER:
            self._omitted += 1
            return
        self._recorded[source] += 1
        omitted, self._omitted = self._omitted, 0
        facts: dict[str, JsonValue] = {"peer": peer[:_TEXT_CHARS], "why": why[:_TEXT_CHARS], **details}
        facts["omitted_before"] = omitted
        log.warning("denied", **facts)
        entry = AuditEntry(OPERATORS, "denied", "unknown", details=facts)
        task = asyncio.create_task(self._write(entry), name="audit of a denied call")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, entry: AuditEntry) -> None:
        try:
            await self._audit.write(entry)
        except AirlockError as error:
            log.warning("a denied call is not in the audit", error=str(error))
