"""Watching a run's events, wherever it is hosted: they are read from the database, never from a live buffer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.errors import InvalidArgument, NotFound, Unavailable
from gateway.runs.hosting import Hosting
from gateway.storage.entities import LoggedEvent, Run
from gateway.storage.store import Store
from gateway.storage.tables import RUNS_UNDER_WAY
from gateway.support.background import pause
from gateway.tenancy.tenants import Tenant

_EVENTS_PAGE = 200
# How soon watchers see the events of a run that waits or that another gateway hosts.
_POLL_S = 0.3


async def stored_run(store: Store, tenant: Tenant, run_id: str) -> Run:
    """Return a run; NotFound also for another tenant's run."""
    run = await store.run(tenant.name, run_id)
    if run is None:
        raise NotFound(f"run {run_id[:64]!r} not found: `airlock runs list` lists the runs")
    return run


async def watched(
    store: Store, hosting: Hosting, tenant: Tenant, run_id: str, from_sequence: int
) -> AsyncIterator[LoggedEvent]:
    """Yield a run's events from a sequence number until the run has finished."""
    if from_sequence < 0:
        raise InvalidArgument("from_sequence: 0 or more")
    run = await stored_run(store, tenant, run_id)
    sequence = max(1, from_sequence)
    while True:
        # Looked up before the events are read: the log announces what is stored after that.
        live = hosting.live.get(run_id)
        page = await store.events_of(run_id, sequence, _EVENTS_PAGE)
        for event in page:
            yield event
            if event.type == "run_finished":
                return
            sequence = event.sequence + 1
        if page:
            continue
        if live is not None:
            await live.log.wait(sequence - 1)
            if live.log.abandoned and not hosting.closing.is_set():
                await pause(hosting.closing, _POLL_S)  # until the run has ended here, or others have it
            continue
        # The run waits for an approval, another gateway has it, or its last event was just stored.
        if run.status not in RUNS_UNDER_WAY:
            return
        if hosting.closing.is_set():
            raise Unavailable(f"the gateway is shutting down: watch again from sequence {sequence} when it is back")
        run = await stored_run(store, tenant, run_id)
        if run.status in RUNS_UNDER_WAY and run_id not in hosting.live and run.last_sequence < sequence:
            await pause(hosting.closing, _POLL_S)
