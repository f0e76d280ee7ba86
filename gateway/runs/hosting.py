"""Hosting: the runs under way in this process, from reserving the thread to storing the last event.

A run that waited, or that a lost gateway left, is taken by exactly one gateway: the first to change its epoch. The run
itself ends the calls that the lost gateway may still have, before it continues (gateway/runs/agent_run.py).
"""

import asyncio
import contextlib
from dataclasses import replace

import structlog

from agent.errors import AgentError
from gateway.errors import AirlockError, QuotaExceeded
from gateway.runs.agent_run import AgentRuns, Interrupted, RunParts
from gateway.runs.live_run import LiveRun, cancelled, finished
from gateway.storage.call_journal import INTERRUPTED_REASON
from gateway.storage.entities import Run, Thread
from gateway.storage.run_writes import Claim
from gateway.storage.waiting_store import WaitingRun
from gateway.tenancy.tenants import Tenant

LIVE_LIMIT = 32
"""Concurrent runs of one tenant. A thread has one run at a time: two would write the same history."""
log = structlog.get_logger(__name__)


class Hosting:
    """The live runs of this process by run id, and its busy threads by thread id."""

    def __init__(self, parts: RunParts, agent_runs: AgentRuns) -> None:
        self.live: dict[str, LiveRun] = {}
        self.busy: dict[str, Thread] = {}
        self.closing = asyncio.Event()
        self._parts = parts
        self._agent_runs = agent_runs

    def full(self, tenant: str) -> bool:
        """Return whether a tenant has as many runs under way here as it may."""
        return sum(thread.tenant == tenant for thread in self.busy.values()) >= LIVE_LIMIT

    def start(self, run: Run, thread: Thread, tenant: Tenant) -> None:
        """Host a new run in a thread that is reserved for it."""
        self._host(LiveRun.of(run, thread, Claim(run.id), self._parts.store), tenant)

    async def take(self, ready: WaitingRun) -> None:
        """Continue an unhosted run here, unless another gateway does."""
        thread = ready.thread
        if self.closing.is_set() or thread.id in self.busy:
            return
        if ready.because == "queued" and self.full(thread.tenant):
            return  # a new run, which waits until there is capacity
        quotas, waiting = self._parts.quotas, self._parts.waiting
        self.busy[thread.id] = thread
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self.busy.pop, thread.id, None)
            tenant = await waiting.tenant(thread.tenant)
            try:
                await quotas.hold_run(tenant.name, ready.id, tenant.policy.document.quotas)
            except QuotaExceeded:
                return  # it waits until there is quota
            undo.push_async_callback(quotas.release_run, ready.id)
            # Read before the claim: once it is claimed, nothing may fail before it is hosted.
            run = await self._parts.store.run(thread.tenant, ready.id)
            claimed = await waiting.store.claim(ready) if run is not None else None
            if run is None or claimed is None:
                return
            undo.pop_all()
        self._agent_runs.models_of(tenant)
        run = replace(run, status="running", last_sequence=claimed.last_sequence)
        work = LiveRun.of(run, thread, claimed.claim, self._parts.store)
        work.because, work.cancelled = ready.because, ready.cancelled
        log.info("run goes on", **work.whose, because=ready.because)
        self._host(work, tenant, claimed.checkpoint)

    def abandon_all(self) -> None:
        """End every run hosted here without writing anything: other gateways may have them."""
        for work in list(self.live.values()):
            work.abandon()

    async def close(self) -> None:
        """Cancel or hand over every live run, and wait until everything is stored."""
        live = list(self.live.values())
        for work in live:
            if self._parts.on_stop == "hand_over" and not work.cancelled:
                work.handed_over = True
                work.abandon()
            elif work.task is not None:
                work.task.cancel()
        await asyncio.gather(*(work.ended for work in live if work.ended is not None))

    def _host(self, work: LiveRun, tenant: Tenant, suspended: str | None = None) -> None:
        run = work.run
        self.live[run.id] = work
        work.task = asyncio.create_task(self._agent_runs.run(work, tenant, suspended), name=f"run {run.id}")
        work.ended = asyncio.create_task(self._end(work, work.task), name=f"end of run {run.id}")
        if self.closing.is_set():
            work.task.cancel()

    async def _end(self, work: LiveRun, task: asyncio.Task[None]) -> None:
        """Wait for a run and settle it. This task is never cancelled, so a run's last event is always stored."""
        await asyncio.wait({task})
        try:
            task.result()
        except asyncio.CancelledError:
            work.emit(cancelled())
        except Exception as error:
            rule, reason = "error", str(error)
            if isinstance(error, Interrupted):
                rule, reason = "interrupted", INTERRUPTED_REASON
            elif not isinstance(error, AgentError | AirlockError):
                log.exception("run failed", run_id=work.run.id)
                rule, reason = "fault", f"a fault of the gateway: {type(error).__name__}"
            work.emit(finished("failed", rule, reason))
        try:
            await work.log.close()
            if not work.abandoned:
                await self._settle_approvals(work)
            elif work.handed_over:
                await self._hand_over(work)
            await self._parts.quotas.release_run(work.run.id)
        finally:
            self.live.pop(work.run.id, None)
            self.busy.pop(work.thread.id, None)

    async def _hand_over(self, work: LiveRun) -> None:
        """Release a run to other gateways, now that nothing of it happens here."""
        try:
            await self._parts.store.hand_over(work.log.claim)
            log.info("run is handed over", **work.whose)
        except AirlockError as error:
            log.warning("a run is not handed over until the lease expires", run_id=work.run.id, error=str(error))

    async def _settle_approvals(self, work: LiveRun) -> None:
        """Cancel the open approvals of a finished run; end a run that was cancelled just as it began to wait."""
        try:
            if not work.suspended:
                await self._parts.waiting.approvals.cancel_open(work.run.id)
            elif work.cancelled:
                await self._parts.waiting.end(work.run.id)
        except AirlockError as error:
            log.warning("approvals of a run are left as they are", run_id=work.run.id, error=str(error))
