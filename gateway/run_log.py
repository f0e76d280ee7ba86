"""The log of a live run: takes events without blocking, numbers them, stores them in order, wakes those who watch.

A watcher reads the database, never this buffer, so that one that is slow or gone costs the run nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import structlog
from pydantic import JsonValue

from agent.coalescing import PIECES, merged
from agent.events import Event
from gateway.clock import NowUs, now_us
from gateway.errors import Unavailable
from gateway.event_payload import payload_json
from gateway.storage.store import LoggedEvent, Store

_PENDING_LIMIT = 1000
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
# What stands in for an event that cannot be stored.
_UNSTORABLE: dict[str, JsonValue] = {"problem": "this event could not be stored; the gateway's log says why"}
_UNSTORABLE_STOP: dict[str, JsonValue] = {
    "hook": "gateway",
    "rule": "unstorable",
    "reason": "the end of this run could not be stored as it was; the gateway's log says why",
}
log = structlog.get_logger(__name__)


class RunLog:
    """Call `emit` as the run's event sink; `wait` returns when more is stored than `sequence`."""

    def __init__(self, run_id: str, store: Store, clock: NowUs = now_us, *, last_sequence: int = 0) -> None:
        """Go on after `last_sequence`, where a run that waited has come back."""
        self._run_id = run_id
        self._store = store
        self._clock = clock
        self._pending: list[tuple[Event, LoggedEvent]] = []
        self._sequence = last_sequence
        self._stored = last_sequence
        self._suspended: str | None = None
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._done = False
        self._flusher = asyncio.create_task(self._flush(), name=f"log of {run_id}")

    def emit(self, event: Event) -> None:
        """Take an event."""
        if self._done:
            return
        # Neighbouring pieces that are not stored yet become one event: a slow database makes fewer, larger ones.
        both = merged(self._pending[-1][0], event) if self._pending else None
        if both is not None:
            self._pending[-1] = (both, replace(self._pending[-1][1], payload=payload_json(both.payload)))
            return
        if event.type in PIECES and len(self._pending) >= _PENDING_LIMIT:
            return  # their whole text comes again in model_finished and tool_call_finished
        logged = LoggedEvent(self._sequence + 1, event.type, self._clock(), payload_json(event.payload))
        self._sequence += 1
        self._pending.append((event, logged))
        self._done = event.type == "run_finished"
        self._wake.set()

    def suspend(self, event: Event, suspended: str) -> None:
        """Take the last event for now: with it the run's state is stored, and from then on it waits."""
        if self._done:
            return
        self._suspended = suspended
        self.emit(event)
        self._done = True

    async def wait(self, sequence: int) -> None:
        """Return once an event after `sequence` is stored, or the log is complete."""
        while self._stored <= sequence and not self._flusher.done():
            changed = self._changed
            waiter = asyncio.create_task(changed.wait())
            await asyncio.wait({waiter, self._flusher}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    async def close(self) -> None:
        """Store what is left; call it after run_finished was emitted, or `suspend` was called."""
        self._done = True
        self._wake.set()
        await asyncio.shield(self._flusher)

    async def _flush(self) -> None:
        while not (self._done and not self._pending):
            await self._wake.wait()
            self._wake.clear()
            if not self._pending:
                continue
            batch, self._pending = self._pending, []
            await self._store_all([logged for _, logged in batch])
            self._stored = batch[-1][1].sequence
            self._changed.set()
            self._changed = asyncio.Event()

    async def _store_all(self, batch: Sequence[LoggedEvent]) -> None:
        """Store a batch; in place of an event that cannot be stored at all, one that says so, for a run has its end."""
        try:
            await self._keep_storing(batch)
        except Exception as error:
            # No traceback: it might show what tenants wrote.
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            log.error("events cannot be stored", run_id=self._run_id, events=len(batch), error=problem)  # noqa: TRY400
            if len(batch) > 1:
                for logged in batch:
                    await self._store_all([logged])
            elif (stand_in := _stand_in(batch[0])) != batch[0]:
                await self._store_all([stand_in])

    async def _keep_storing(self, batch: Sequence[LoggedEvent]) -> None:
        """Store a batch, again and again while the database refuses: a full disk must not cost a run its end."""
        last = batch[-1]
        suspended = self._suspended if last.type == "run_suspended" else None
        # As it is stored, for the run's row is to say the same.
        finished = Event(last.type, json.loads(last.payload)) if last.type == "run_finished" else None
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                return await self._store.add_events(self._run_id, batch, finished, suspended)
            except Unavailable as error:
                log.error("events are not stored yet", run_id=self._run_id, events=len(batch), error=str(error))  # noqa: TRY400 - the database has logged why
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)


def _stand_in(logged: LoggedEvent) -> LoggedEvent:
    """Return a small event of the same type and number."""
    finished: dict[str, JsonValue] = {"status": "failed", "stop": _UNSTORABLE_STOP, "answer": ""}
    payload = finished if logged.type == "run_finished" else _UNSTORABLE
    return replace(logged, payload=payload_json(payload))
