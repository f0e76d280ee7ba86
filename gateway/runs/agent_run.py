"""One run from its state to its end: the agent is built, goes on from what is stored, and its way is kept.

A gateway that is lost is dead as a rule, and with its connections the daemon has ended what its calls had started. One
that is only stopped, or cut off from the database, still has calls in the thread's sandbox: the run goes on in another
sandbox then, with the same files, and what the old one's calls would have done later is not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from agent.agent import Agent
from agent.host import Host
from agent.messages import Message
from agent.state import AgentState
from gateway.agents import agents
from gateway.agents.models import Models
from gateway.config.agent_settings import AgentSettings
from gateway.credentials.caller import act_for
from gateway.errors import NotFound
from gateway.redaction.events import redacted_events
from gateway.runs.checkpoints import Checkpoints
from gateway.runs.event_deduplication import EventDeduplication
from gateway.runs.live_run import LiveRun
from gateway.runs.saved_steps import KeepFiles, SavedSteps
from gateway.runs.suspended_run import SuspendedRun
from gateway.runs.thread_history import Steps, ThreadHistoryHook
from gateway.runs.trace_log import TraceLog
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.support.retry import retried
from gateway.telemetry.run_span import hosted
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls, ToolPath
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)
EndCalls = Callable[[str, str], Awaitable[bool]]
"""Ends all that is under way in the sandbox of a tenant's thread; returns whether anything was."""


class Interrupted(Exception):
    """A run cannot go on after its gateway was lost."""


class AgentRuns:
    """Runs the agents of live runs; `models` are the tenants' by their names, and grow by those that are asked for."""

    def __init__(
        self,
        store: Store,
        tool_calls: ToolCalls,
        waiting: WaitingRuns,
        telemetry: Telemetry,
        models: dict[str, Models],
        end_calls: EndCalls | None = None,
        lease_over: Callable[[], bool] = lambda: False,
        keep_files: KeepFiles | None = None,
    ) -> None:
        self._keep_files = keep_files
        self._store = store
        self._tool_calls = tool_calls
        self._waiting = waiting
        self._telemetry = telemetry
        self._models = models
        self._end_calls = end_calls
        self._lease_over = lease_over

    def models_of(self, tenant: Tenant) -> Models:
        """Return a tenant's models."""
        if tenant.name not in self._models:
            self._models[tenant.name] = Models(tenant.concurrent_inferences, self._telemetry)
        return self._models[tenant.name]

    async def close(self) -> None:
        """Close the models."""
        await asyncio.gather(*(models.close() for models in self._models.values()))

    async def run(self, live: LiveRun, tenant: Tenant, stored: str | None) -> None:
        """Run to the end, or until it is suspended. `stored` is what it goes on from, where it came here."""
        run = live.run
        act_for(run.started_by)  # also where this gateway took it over, and nobody calls
        if live.because:
            await self._recall(live, stored)
        suspended = SuspendedRun.model_validate_json(stored) if stored is not None else None
        tenant = await self._judging(live, tenant, suspended)
        if run.agent not in tenant.agents:
            raise NotFound(f"the agent {run.agent!r} of this run is not configured any more")
        tool_path = self._tool_calls.tool_path(tenant, live.thread, run.id, run.agent)
        state = suspended.state if suspended is not None else AgentState(run_id=run.id, thread=live.thread.name)
        read = partial(self._as_stored, live.thread, state.with_(agent=run.agent))
        # A run that goes on has been taken: what cannot be read now must not be its end.
        kept = await (read() if suspended is None else retried(read, run_id=run.id, what="its thread"))
        checkpoints = Checkpoints(
            live.log,
            tool_path.journal,
            policy_reference(tenant, run.policy_mode),
            tool_path.approver.not_begun,
            suspended,
        )
        history = checkpoints.history = ThreadHistoryHook(
            self._steps(checkpoints, live, tenant, taken_up=suspended is not None), live.thread, kept
        )
        agent = self._agent(live, tenant, tenant.agents[run.agent], tool_path, checkpoints)
        live.journal = tool_path.journal
        read_only = [spec.name for spec in agent.executor.specs() if spec.read_only]
        live.journal.hosted.host(live.log.claim, read_only, self._lease_over)
        begin = kept if kept.started else kept.say(Message(role="user", content=run.task))
        structlog.contextvars.bind_contextvars(tenant=run.tenant, run_id=run.id, thread=run.thread)
        with hosted(self._telemetry, begin, tenant=run.tenant, agent=run.agent, model=agent.model.name) as seen:
            end = await agent.run(begin, seen.hearing(redacted_events(tool_path.redactor, live.tell)))
        if end.pending is not None and live.suspending is not None:
            live.suspended = True
            live.log.suspend(live.suspending, checkpoints.stored(end, 1), history.added(end))
            log.info("run waits", run_id=run.id, tenant=run.tenant, thread=run.thread)

    def _steps(self, checkpoints: Checkpoints, live: LiveRun, tenant: Tenant, *, taken_up: bool) -> Steps:
        """Return where the steps of a run are kept, with their files where there is somebody to keep them."""
        if self._keep_files is None:
            return checkpoints
        return SavedSteps(checkpoints, self._keep_files, tenant, live.run.id, live.tell, taken_up=taken_up)

    async def _recall(self, live: LiveRun, stored: str | None) -> None:
        """Find what an earlier gateway told of a run, and settle its calls that were under way, if none goes on."""
        run_id, claim = live.run.id, live.log.claim
        checkpoint = SuspendedRun.model_validate_json(stored) if stored is not None else None
        since = checkpoint.sequence if checkpoint is not None else 0
        told = partial(self._store.told_since, run_id, since)
        live.told = EventDeduplication(await retried(told, run_id=run_id, what="its events"))
        if live.because == "approval":
            return
        if live.because == "gateway_lost":
            await self._end_calls_of_lost(live)
        if live.cancelled or checkpoint is None or checkpoint.state.pending is None:
            settled = partial(self._store.take_over_calls, claim, ())
            await retried(settled, run_id=run_id, what="its calls that were under way")
        if live.cancelled:
            raise asyncio.CancelledError
        if checkpoint is None:
            raise Interrupted  # it was started by a version that kept nothing to go on from

    async def _end_calls_of_lost(self, live: LiveRun) -> None:
        """End what a gateway that is lost, and may only be stopped, has under way of a run."""
        run = live.run
        under_way = partial(self._store.calls_under_way, run.id)
        if self._end_calls is None or not await retried(under_way, run_id=run.id, what="its calls under way"):
            return
        try:
            if await self._end_calls(run.tenant, run.thread):
                log.warning("a lost gateway still had calls under way: their sandbox was replaced", run_id=run.id)
        except SandboxError as error:
            log.warning("what a lost gateway has under way is not ended", run_id=run.id, error=str(error))

    async def _judging(self, live: LiveRun, tenant: Tenant, suspended: SuspendedRun | None) -> Tenant:
        """Return the tenant with the policy that judges a run."""
        if suspended is not None and suspended.policy:
            pinned = partial(self._waiting.tenant, tenant.name, suspended.policy)
            return await retried(pinned, run_id=live.run.id, what="its policy")
        return tenant.pinned() if live.run.policy_mode == "pin" else tenant

    async def _as_stored(self, thread: Thread, state: AgentState) -> AgentState:
        messages, metadata = await self._store.messages_of(thread), await self._store.metadata_of(thread)
        return state.with_(messages=messages, metadata=metadata)

    def _agent(
        self, live: LiveRun, tenant: Tenant, settings: AgentSettings, tool_path: ToolPath, checkpoints: Checkpoints
    ) -> Agent:
        model_of, document = self.models_of(tenant).of, tenant.policy.document
        recorder = TraceLog(tenant=tenant.name, thread=live.thread.name, run_id=live.run.id)
        return Agent(
            model=model_of(settings.model or tenant.model),
            name=live.run.agent,
            capabilities=agents.build(settings, tenant.model, document, tool_path.workspace, model_of, recorder),
            hooks=(*tool_path.hooks, checkpoints.history),
            system_prompt=settings.system_prompt,
            host=Host(approver=tool_path.approver, recovery=checkpoints),
        )


def policy_reference(tenant: Tenant, policy_mode: str) -> str:
    """Return what names the policy that a run is pinned to."""
    return tenant.policy_reference if policy_mode == "pin" else ""
