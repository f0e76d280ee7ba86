"""Cancels runs: those hosted here, those that wait, and those that another gateway hosts."""

from __future__ import annotations

from gateway.errors import AirlockError
from gateway.runs.hosting import Hosting
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Run
from gateway.storage.store import Store
from gateway.storage.tables import RUNS_UNDER_WAY
from gateway.support.periodic import Periodic

# How soon a run ends that was cancelled on another gateway.
_POLL_S = 0.25


class Cancelling:
    """Cancels runs."""

    def __init__(self, store: Store, hosting: Hosting, waiting: WaitingRuns) -> None:
        self._store = store
        self._hosting = hosting
        self._waiting = waiting

    async def cancel(self, run: Run) -> None:
        """Stop a run and its processes; a finished run stays as it is."""
        live = self._hosting.live.get(run.id)
        if live is not None and not live.abandoned:
            live.cancel()
        elif run.status in RUNS_UNDER_WAY:
            await self._cancel_elsewhere(run.id)

    async def _cancel_elsewhere(self, run_id: str) -> None:
        """End a run that waits; ask the gateway that hosts any other one, now or later, to end it."""
        if await self._waiting.end(run_id):
            return
        await self._store.ask_to_cancel(run_id)
        self._waiting.look()

    async def follow(self) -> None:
        """Cancel the runs hosted here whose end was requested on another gateway, until cancelled."""
        looks = Periodic(self._look, _POLL_S, "runs that were cancelled elsewhere are not known", (AirlockError,))
        await looks.repeat(at_once=False)

    async def _look(self) -> None:
        for run_id in await self._store.asked_to_cancel() if self._hosting.live else ():
            live = self._hosting.live.get(run_id)
            if live is not None:
                live.cancel()
