"""Ending runs that somebody wants ended: one of this gateway's, one that waits, one that another gateway hosts."""

from __future__ import annotations

import asyncio

import structlog

from gateway.errors import AirlockError
from gateway.runs.hosting import Hosting
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Run
from gateway.storage.store import Store
from gateway.storage.tables import RUNS_UNDER_WAY

# How soon a run ends that was cancelled on another gateway.
_POLL_S = 0.25
log = structlog.get_logger(__name__)


class Cancelling:
    """Ends runs."""

    def __init__(self, store: Store, hosting: Hosting, waiting: WaitingRuns) -> None:
        self._store = store
        self._hosting = hosting
        self._waiting = waiting

    async def cancel(self, run: Run) -> None:
        """Stop a run, down to its processes; a finished run stays as it is."""
        live = self._hosting.live.get(run.id)
        if live is not None and not live.abandoned:
            live.cancel()
        elif run.status in RUNS_UNDER_WAY:
            await self._cancel_elsewhere(run.id)

    async def _cancel_elsewhere(self, run_id: str) -> None:
        """End a run that waits; of one that another gateway hosts, or nobody, ask for its end."""
        if await self._waiting.end(run_id):
            return
        await self._store.ask_to_cancel(run_id)
        self._waiting.look()

    async def follow(self) -> None:
        """Cancel what is hosted here and was asked to end elsewhere, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                asked = await self._store.asked_to_cancel() if self._hosting.live else ()
            except AirlockError as error:
                log.warning("what was cancelled elsewhere is not known", error=str(error))
                continue
            for run_id in asked:
                live = self._hosting.live.get(run_id)
                if live is not None:
                    live.cancel()
