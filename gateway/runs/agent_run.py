"""One run from its stored state to its end: builds the agent, continues it, and stores its progress.

A lost gateway has usually died, and the daemon has ended its calls with its connections. A gateway that was only
stopped, or cut off from the database, may still have calls in the thread's sandbox: the run then continues in a new
sandbox with the same files, and the old calls have no further effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import structlog

from agent.agent import Agent
from agent.loop import Host
from agent.messages import Message
from agent.state import AgentState
from gateway.agents import agents
from gateway.agents.models import Models
from gateway.config.agent_settings import AgentSettings
from gateway.credentials.caller import act_for
from gateway.errors import NotFound
from gateway.redaction.hooks import redacted_events
from gateway.runs.checkpoints import Checkpoints, KeepFiles, SavedSteps, SuspendedRun
from gateway.runs.live_run import EventDeduplication, LiveRun
from gateway.runs.thread_history import Steps, ThreadHistoryHook
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.support.background import retried
from gateway.support.clock import MakeId, make_id
from gateway.telemetry.observed import TraceLog, hosted
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls, ToolPath
from sandbox.errors import SandboxError

OnStop = Literal["hand_over", "cancel"]
EndCalls = Callable[[str, str], Awaitable[bool]]
"""Ends every call in the sandbox of a tenant's thread; returns whether there was one."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunParts:
    """The parts that hosting runs needs.

    `on_stop` is what happens to live runs when the gateway stops. `models` are those of some tenants, by tenant name.
    `end_calls` ends the calls that a lost gateway left in a thread's sandbox. `lease_over` returns whether this gateway
    has lost its own lease. `keep_files` takes a snapshot after a step, if the policy asks for it.
    """

    store: Store
    tool_calls: ToolCalls
    waiting: WaitingRuns
    quotas: Quotas
    on_stop: OnStop
    ids: MakeId = make_id
    telemetry: Telemetry = field(default_factory=Telemetry.off)
    models: Mapping[str, Models] = field(default_factory=dict)
    end_calls: EndCalls | None = None
    lease_over: Callable[[], bool] = lambda: False
    keep_files: KeepFiles | None = None


class Interrupted(Exception):
    """A run of a lost gateway that cannot continue."""


class AgentRuns:
    """Runs the agents of live runs."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._models = dict(parts.models)

    def models_of(self, tenant: Tenant) -> Models:
        """Return a tenant's models."""
        if tenant.name not in self._models:
            self._models[tenant.name] = Models(tenant.concurrent_inferences, self._parts.telemetry)
        return self._models[tenant.name]

    async def close(self) -> None:
        """Close the models."""
        await asyncio.gather(*(models.close() for models in self._models.values()))

    async def run(self, live: LiveRun, tenant: Tenant, stored: str | None) -> None:
        """Run until the end or until the run suspends. `stored` is the checkpoint of a run that was taken over."""
        run = live.run
        suspended = SuspendedRun.model_validate_json(stored) if stored is not None else None
        act_for(run.started_by)  # also for a run that was taken over, outside any call
        if live.because:
            await self._recall(live, suspended)
        if suspended is not None and suspended.policy:
            pinned = partial(self._parts.waiting.tenant, tenant.name, suspended.policy)
            tenant = await retried(pinned, run_id=run.id, what="its policy")
        elif run.policy_mode == "pin":
            tenant = tenant.pinned()
        if run.agent not in tenant.agents:
            raise NotFound(f"the agent {run.agent!r} of this run is no longer configured")
        tool_path = self._parts.tool_calls.tool_path(tenant, live.thread, run.id, run.agent)
        state = suspended.state if suspended is not None else AgentState(run_id=run.id, thread=live.thread.name)
        read = partial(self._as_stored, live.thread, state.with_(agent=run.agent))
        # A run that was taken over must not end because of a failed read.
        kept = await (read() if suspended is None else retried(read, run_id=run.id, what="its thread"))
        policy = policy_reference(tenant, run.policy_mode)
        checkpoints = Checkpoints(live.log, tool_path.journal, policy, suspended)
        steps: Steps = checkpoints
        if (keep_files := self._parts.keep_files) is not None:
            taken_up = suspended is not None
            steps = SavedSteps(checkpoints, keep_files, tenant, run.id, live.emit, taken_up=taken_up)
        history = checkpoints.history = ThreadHistoryHook(steps, live.thread, kept)
        agent = self._agent(live, tenant, tenant.agents[run.agent], tool_path, checkpoints)
        live.journal = tool_path.journal
        read_only = [spec.name for spec in agent.executor.specs() if spec.read_only]
        live.journal.hosted.host(live.log.claim, read_only, self._parts.lease_over)
        begin = kept if kept.started else kept.say(Message(role="user", content=run.task))
        structlog.contextvars.bind_contextvars(**live.whose)
        with hosted(self._parts.telemetry, begin, tenant=run.tenant, agent=run.agent, model=agent.model.name) as seen:
            end = await agent.run(begin, seen.observing(redacted_events(tool_path.redactor, live.emit)))
        if end.pending is not None and live.suspending is not None:
            live.suspended = True
            live.log.suspend(live.suspending, checkpoints.stored(end, 1), history.added(end))
            log.info("run waits", **live.whose)

    async def _recall(self, live: LiveRun, checkpoint: SuspendedRun | None) -> None:
        """Find the events that an earlier gateway logged, and settle its open calls unless one of them continues."""
        run_id, claim = live.run.id, live.log.claim
        since = checkpoint.sequence if checkpoint is not None else 0
        logged = partial(self._store.logged_since, run_id, since)
        live.logged = EventDeduplication(await retried(logged, run_id=run_id, what="its events"))
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
            raise Interrupted  # started by a version without checkpoints

    async def _end_calls_of_lost(self, live: LiveRun) -> None:
        """End the calls of a run whose lost gateway may only be stopped."""
        run, end_calls = live.run, self._parts.end_calls
        under_way = partial(self._store.calls_under_way, run.id)
        if end_calls is None or not await retried(under_way, run_id=run.id, what="its calls under way"):
            return
        try:
            if await end_calls(run.tenant, run.thread):
                log.warning("a lost gateway still had calls in progress; their sandbox was replaced", run_id=run.id)
        except SandboxError as error:
            log.warning("the calls of a lost gateway are not ended", run_id=run.id, error=str(error))

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
            host=Host(approver=tool_path.approver, recovery=checkpoints, context=tool_path.context),
        )


def policy_reference(tenant: Tenant, policy_mode: str) -> str:
    """Return the reference of the policy that a run is pinned to; "" for a run that follows."""
    return tenant.policy_reference if policy_mode == "pin" else ""
