"""Continues unhosted runs: those whose approvals are answered, and those that a lost gateway left.

Exactly one gateway takes a run: the first to change its epoch. The run itself ends the calls that the lost gateway may
still have, before it continues (gateway/runs/agent_run.py).
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from gateway.errors import QuotaExceeded
from gateway.runs.agent_run import AgentRuns
from gateway.runs.hosting import Hosting
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.store import Store
from gateway.storage.waiting_store import WaitingRun

log = structlog.get_logger(__name__)


class TakingOver:
    """Takes runs for this gateway."""

    def __init__(self, store: Store, hosting: Hosting, agent_runs: AgentRuns) -> None:
        self._store = store
        self._hosting = hosting
        self._agent_runs = agent_runs

    async def take(self, ready: WaitingRun, waiting: WaitingRuns) -> None:
        """Continue a run, unless another gateway does."""
        thread, hosting = ready.thread, self._hosting
        if hosting.closing.is_set() or thread.id in hosting.busy:
            return
        if ready.because == "placed" and hosting.full(thread.tenant):
            return  # a new run, which waits until there is capacity
        hosting.busy[thread.id] = thread
        try:
            tenant = await waiting.tenant(thread.tenant)
            await hosting.hold_quotas(tenant, ready.id)
            # Read before the claim: once it is claimed, nothing may fail before it is hosted.
            run = await self._store.run(thread.tenant, ready.id)
            claimed = await waiting.store.claim(ready) if run is not None else None
            if run is None or claimed is None:
                hosting.busy.pop(thread.id, None)
                await hosting.release_quotas(ready.id)
                return
        except QuotaExceeded:
            hosting.busy.pop(thread.id, None)
            return  # it waits until there is quota
        except BaseException:
            hosting.busy.pop(thread.id, None)
            await hosting.release_quotas(ready.id)
            raise
        self._agent_runs.models_of(tenant)
        log.info("run goes on", run_id=run.id, tenant=run.tenant, thread=run.thread, because=ready.because)
        run = replace(run, status="running", last_sequence=claimed.last_sequence)
        hosting.go_on(run, ready, claimed, tenant)
