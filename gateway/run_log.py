"""The log of a live run: takes events without blocking, numbers them, stores them in order, wakes those who watch.

A watcher reads the database, never this buffer, so that one that is slow or gone costs the run nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent.coalescing import PIECES, merged
from agent.events import Event
from gateway.clock import NowUs, now_us
from gateway.errors import Unavailable
from gateway.storage.store import LoggedEvent, Store

_PENDING_LIMIT = 1000
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
log = structlog.get_logger(__name__)


class RunLog:
    """Call `emit` as the run's event sink; `wait` returns when more is stored than `sequence`."""

    def __init__(self, run_id: str, store: Store, clock: NowUs = now_us) -> None:
        self._run_id = run_id
        self._store = store
        self._clock = clock
        self._pending: list[tuple[Event, LoggedEvent]] = []
        self._sequence = 0
        self._stored = 0
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
            self._pending[-1] = (both, replace(self._pending[-1][1], payload=json.dumps(both.payload)))
            return
        if event.type in PIECES and len(self._pending) >= _PENDING_LIMIT:
            return  # their whole text comes again in model_finished and tool_call_finished
        # First what may fail: a number that was given and not used would be a gap.
        logged = LoggedEvent(self._sequence + 1, event.type, self._clock(), json.dumps(event.payload))
        self._sequence += 1
        self._pending.append((event, logged))
        self._done = event.type == "run_finished"
        self._wake.set()

    async def wait(self, sequence: int) -> None:
        """Return once an event after `sequence` is stored, or the log is complete."""
        while self._stored <= sequence and not self._flusher.done():
            changed = self._changed
            waiter = asyncio.create_task(changed.wait())
            await asyncio.wait({waiter, self._flusher}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    async def close(self) -> None:
        """Store what is left; call it after run_finished was emitted."""
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
            await self._keep_storing(batch)
            self._stored = batch[-1][1].sequence
            self._changed.set()
            self._changed = asyncio.Event()

    async def _keep_storing(self, batch: Sequence[tuple[Event, LoggedEvent]]) -> None:
        """Store a batch, again and again while the database refuses: a full disk must not cost a run its end."""
        last = batch[-1][0]
        finished = last if last.type == "run_finished" else None
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                return await self._store.add_events(self._run_id, [logged for _, logged in batch], finished)
            except Unavailable as error:
                log.error("events are not stored yet", run_id=self._run_id, events=len(batch), error=str(error))  # noqa: TRY400 - the database has logged why
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)
