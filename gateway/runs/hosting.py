"""Hosting: the runs under way in this process, from reserving the thread to storing the last event.

A run that waited, or that a lost gateway left, is taken by exactly one gateway: the first to change its epoch.

A lost gateway has usually died, and the daemon has ended its calls with its connections. A gateway that was only
stopped, or cut off from the database, may still have calls in the thread's sandbox: the run then continues in a new
sandbox with the same files, and the old calls have no further effect.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import structlog

from agent.agent import Agent
from agent.errors import AgentError
from agent.loop import Host
from agent.messages import Attachment, Message
from agent.state import AgentState
from agent.tools.tool import Capability
from gateway.agents import agents
from gateway.agents.models import Models, ModelSlots
from gateway.credentials.caller import act_for
from gateway.errors import AirlockError, NotFound, QuotaExceeded
from gateway.redaction.hooks import redacted_events
from gateway.runs.account import Account
from gateway.runs.checkpoints import Checkpoints, KeepFiles, SavedSteps, Steps, SuspendedRun, ThreadHistoryHook
from gateway.runs.live_run import EventDeduplication, LiveRun, cancelled, finished
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.call_journal import INTERRUPTED_REASON
from gateway.storage.entities import Run, Thread
from gateway.storage.run_writes import Claim
from gateway.storage.store import Store
from gateway.storage.waiting_store import WaitingRun
from gateway.support.background import retried
from gateway.telemetry.observed import TraceLog, hosted
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls, ToolPath
from sandbox.errors import SandboxError

ServerTools = Callable[[Tenant, ToolPath, str], Awaitable[Capability | None]]
"""Returns the tools of an agent's MCP servers; None where it has none."""
EndCalls = Callable[[str, str], Awaitable[bool]]
"""Ends every call in the sandbox of a tenant's thread; returns whether there was one."""
LIVE_LIMIT = 32
"""Concurrent runs of one tenant. A thread has one run at a time: two would write the same history."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunParts:
    """The parts that hosting runs needs.

    `on_stop` is what happens to live runs when the gateway stops. `models` are those of some tenants, by tenant name.
    `end_calls` ends the calls that a lost gateway left in a thread's sandbox. `lease_over` returns whether this gateway
    has lost its own lease. `keep_files` takes a snapshot after a step, if the policy asks for it. `server_tools`
    returns the tools of an agent's MCP servers.
    """

    store: Store
    tool_calls: ToolCalls
    waiting: WaitingRuns
    quotas: Quotas
    on_stop: Literal["hand_over", "cancel"]
    telemetry: Telemetry = field(default_factory=Telemetry.off)
    models: Mapping[str, Models] = field(default_factory=dict)
    end_calls: EndCalls | None = None
    lease_over: Callable[[], bool] = lambda: False
    keep_files: KeepFiles | None = None
    server_tools: ServerTools | None = None


class Interrupted(Exception):
    """A run of a lost gateway that cannot continue."""


class Hosting:
    """The live runs of this process by run id, and its busy threads by thread id."""

    def __init__(self, parts: RunParts) -> None:
        self.live: dict[str, LiveRun] = {}
        self.busy: dict[str, Thread] = {}
        self.closing = asyncio.Event()
        self._parts = parts
        self._store = parts.store
        self._models = dict(parts.models)
        self._slots = ModelSlots()

    def models_of(self, tenant: Tenant) -> Models:
        if tenant.name not in self._models:
            self._models[tenant.name] = Models(tenant.concurrent_inferences, self._parts.telemetry, self._slots)
        return self._models[tenant.name]

    def full(self, tenant: str) -> bool:
        """Return whether a tenant has as many runs under way here as it may."""
        return sum(thread.tenant == tenant for thread in self.busy.values()) >= LIVE_LIMIT

    def start(self, run: Run, thread: Thread, tenant: Tenant, attachments: tuple[Attachment, ...] = ()) -> None:
        """Host a new run in a thread that is reserved for it."""
        account = Account(tenant.name, run.agent, self._parts.telemetry)
        work = LiveRun.of(run, thread, Claim(run.id), self._store, account)
        work.attachments = attachments
        self._host(work, tenant)

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
            if not await waiting.store.unclaimed(ready):
                return
            try:
                await quotas.hold_run(tenant.name, ready.id, tenant.policy.document.quotas)
            except QuotaExceeded:
                return  # it waits until there is quota
            undo.push_async_callback(quotas.release_run, ready.id)
            # Read before the claim: once it is claimed, nothing may fail before it is hosted.
            run = await self._store.run(thread.tenant, ready.id)
            claimed = await waiting.store.claim(ready) if run is not None else None
            if run is None or claimed is None:
                return
            undo.pop_all()
        self.models_of(tenant)
        run = replace(run, status="running", last_sequence=claimed.last_sequence)
        account = Account(tenant.name, run.agent, self._parts.telemetry, claimed.used)
        work = LiveRun.of(run, thread, claimed.claim, self._store, account)
        work.because, work.cancelled = ready.because, ready.cancelled
        log.info("run goes on", **work.whose, because=ready.because)
        self._host(work, tenant, claimed.checkpoint)

    def abandon_all(self) -> None:
        """End every run hosted here without writing anything: other gateways may have them."""
        for work in list(self.live.values()):
            work.abandon()

    async def close(self) -> None:
        live = list(self.live.values())
        for work in live:
            if self._parts.on_stop == "hand_over" and not work.cancelled:
                work.handed_over = True
                work.abandon()
            elif work.task is not None:
                work.task.cancel()
        await asyncio.gather(*(work.ended for work in live if work.ended is not None))
        await asyncio.gather(*(models.close() for models in self._models.values()))

    def _host(self, work: LiveRun, tenant: Tenant, suspended: str | None = None) -> None:
        run = work.run
        self.live[run.id] = work
        work.task = asyncio.create_task(self._run(work, tenant, suspended), name=f"run {run.id}")
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
            await self._store.hand_over(work.log.claim)
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

    # --- one run's agent, from the stored state to its end ---

    async def _run(self, live: LiveRun, tenant: Tenant, stored: str | None) -> None:
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
        read = partial(self._as_stored, live.thread, live.account.known_to(state).with_(agent=run.agent))
        # A run that was taken over must not end because of a failed read.
        kept = await (read() if suspended is None else retried(read, run_id=run.id, what="its thread"))
        policy = policy_reference(tenant, run.policy_mode)
        checkpoints = Checkpoints(live.log, tool_path.journal, policy, suspended)
        steps: Steps = checkpoints
        if (keep_files := self._parts.keep_files) is not None:
            taken_up = suspended is not None
            steps = SavedSteps(checkpoints, keep_files, tenant, run.id, live.emit, taken_up=taken_up)
        history = checkpoints.history = ThreadHistoryHook(steps, live.thread, kept)
        servers = self._parts.server_tools
        mcp = None if servers is None else await servers(tenant, tool_path, run.agent)
        agent = self._agent(live, tenant, tool_path, checkpoints, mcp)
        live.journal = tool_path.journal
        live.journal.host(live.log.claim, self._parts.lease_over)
        attached = live.attachments if suspended is None else suspended.attachments
        task = Message(role="user", content=run.task, attachments=attached)
        begin = kept if kept.started else kept.say(task)
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
        read = self._store.messages_of(thread), self._store.metadata_of(thread)
        messages, metadata = await asyncio.gather(*read)
        return state.with_(messages=messages, metadata=metadata)

    def _agent(
        self, live: LiveRun, tenant: Tenant, tool_path: ToolPath, checkpoints: Checkpoints, mcp: Capability | None
    ) -> Agent:
        settings = tenant.agents[live.run.agent]
        model_of = partial(self.models_of(tenant).of, charges=live.account)
        document, workspace = tenant.policy.document, tool_path.workspace
        recorder = TraceLog(tenant=tenant.name, thread=live.thread.name, run_id=live.run.id)
        return Agent(
            model=model_of(settings.model or tenant.model),
            name=live.run.agent,
            capabilities=(
                *agents.build(
                    settings, tenant.model, document, workspace, model_of, recorder, connects=tenant.policy.connects
                ),
                *((mcp,) if mcp is not None else ()),
            ),
            hooks=(*tool_path.hooks, checkpoints.history),
            system_prompt=settings.system_prompt,
            host=Host(approver=tool_path.approver, recovery=checkpoints, context=tool_path.context),
        )


def policy_reference(tenant: Tenant, policy_mode: str) -> str:
    """Return the reference of the policy that a run is pinned to; "" for a run that follows."""
    return tenant.policy_reference if policy_mode == "pin" else ""
