"""Runs: starting them, following them, stopping them. A run is a task here and an event log in the database.

A run that waits for an approval is no task anywhere: its state is in the database, and a gateway that finds nothing of
it asked any more takes it and goes on (gateway/runs/waiting_runs.py). So is one whose gateway is lost, or was stopped:
it is taken over from its last checkpoint (gateway/runs/checkpoints.py), and what its old gateway still writes is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import structlog
from pydantic import JsonValue
from sqlalchemy.exc import IntegrityError

from agent.errors import AgentError
from agent.events import Event
from agent.loop import Agent
from agent.messages import Message
from agent.state import AgentState
from gateway import agents
from gateway.calls.journal import JournalHook
from gateway.calls.tool_calls import ToolCalls
from gateway.clock import MakeId, make_id
from gateway.errors import (
    AirlockError,
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    ThreadBusy,
    TooLarge,
    Unavailable,
)
from gateway.models import Models
from gateway.quotas import Quotas
from gateway.redaction.events import redacted_events
from gateway.runs.checkpoints import Checkpoints
from gateway.runs.patience import patiently
from gateway.runs.run_log import RunLog
from gateway.runs.suspended_run import SuspendedRun
from gateway.runs.thread_history import THREAD_LIMIT_CHARS, ThreadHistoryHook
from gateway.runs.told_events import ToldEvents
from gateway.runs.trace_log import TraceLog
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.lease_store import INTERRUPTED_REASON
from gateway.storage.run_writes import Claim
from gateway.storage.store import LoggedEvent, Run, Store, Thread
from gateway.storage.waiting_store import WaitingRun
from gateway.telemetry.run_span import hosted
from gateway.telemetry.telemetry import Telemetry
from gateway.tenants import Tenant

log = structlog.get_logger(__name__)
_TASK_LIMIT_CHARS = 262_144
_EVENTS_PAGE = 200
# Runs at once of one tenant; one run at a time in a thread, for both would write the same history.
_LIVE_LIMIT = 32
# How soon those who watch a run that waits, or that another gateway hosts, see what it does.
_WATCH_POLL_S = 0.3
# How soon a run ends that was cancelled on another gateway.
_CANCEL_POLL_S = 0.25
PolicyMode = Literal["pin", "follow"]
OnStop = Literal["hand_over", "cancel"]
_UNDER_WAY = ("running", "waiting")
_GATEWAY_STOPPED: dict[str, JsonValue] = {
    "hook": "gateway",
    "rule": "gateway_stopped",
    "reason": "the gateway was stopped while the run was under way; start it again",
}


class _Interrupted(Exception):
    """A run cannot go on after its gateway was lost."""


@dataclass
class _Live:
    run: Run
    thread: Thread
    log: RunLog
    cancelled: bool = False
    # Why it came here; empty for one that was started here.
    because: str = ""
    told: ToldEvents = field(default_factory=ToldEvents)
    # Where it is another gateway's, or is to become it: nothing more is written of it here.
    abandoned: bool = False
    handed_over: bool = False
    journal: JournalHook | None = None
    suspending: Event | None = None
    suspended: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    ended: asyncio.Task[None] | None = field(default=None, repr=False)


class Runs:
    """Hosts the runs of every tenant."""

    def __init__(
        self,
        store: Store,
        tool_calls: ToolCalls,
        ids: MakeId = make_id,
        waiting: WaitingRuns | None = None,
        quotas: Quotas | None = None,
        telemetry: Telemetry | None = None,
        on_stop: OnStop = "cancel",
    ) -> None:
        """Without `waiting` nobody can be asked, and no run waits; without `quotas` runs_at_once is not held.

        `on_stop` says what becomes of live runs when this is closed: they end, or other gateways go on with them.
        """
        self._on_stop = on_stop
        self._quotas = quotas
        self._telemetry = telemetry or Telemetry.off()
        self._store = store
        self._tool_calls = tool_calls
        self._ids = ids
        self._live: dict[str, _Live] = {}
        self._models: dict[str, Models] = {}
        self._busy: dict[str, Thread] = {}
        self._closing = asyncio.Event()
        self._waiting = waiting
        self._waker = asyncio.create_task(waiting.follow(self._resume)) if waiting is not None else None
        self._canceller = asyncio.create_task(self._follow_cancels(), name="cancelled elsewhere")

    async def start(
        self,
        tenant: Tenant,
        task: str,
        thread_name: str,
        agent_name: str,
        policy_mode: PolicyMode = "pin",
        request: tuple[str, str] | None = None,
    ) -> Run:
        """Start a run and return it; its first event is stored soon after. `request` is its request id, and a digest.

        One that pins is judged by the policy that is in force now to its end, one that follows by whatever is in force.
        """
        agent_name = agent_name or "default"
        if not task or len(task) > _TASK_LIMIT_CHARS:
            raise InvalidArgument(f"task: between 1 and {_TASK_LIMIT_CHARS:,} characters")
        if agent_name not in tenant.agents:
            raise InvalidArgument(f"agent: {agent_name[:64]!r} is not one of {', '.join(sorted(tenant.agents))}")
        run_id = self._ids("run")
        # The first thing: a run that is refused leaves nothing, not even its thread.
        if self._quotas is not None:
            await self._quotas.hold_run(tenant.name, run_id, tenant.policy.document.quotas)
        try:
            thread = await self._reserved(tenant, thread_name or self._ids("thread"))
        except BaseException:
            await self._release_quotas(run_id)
            raise
        tenant = tenant.pinned() if policy_mode == "pin" else tenant
        # Shielded: a caller that goes away meanwhile must not leave a stored run that nobody hosts.
        begun = asyncio.create_task(self._begin(run_id, tenant, thread, task, agent_name, policy_mode, request))
        return await asyncio.shield(begun)

    async def _reserved(self, tenant: Tenant, thread_name: str) -> Thread:
        """Return a thread that is busy with a new run from now on."""
        thread = await self._tool_calls.thread(tenant, thread_name)
        # Between the look and the taking nothing may be awaited, or two would pass at once.
        mine = [busy for busy in self._busy.values() if busy.tenant == tenant.name]
        if len(mine) >= _LIVE_LIMIT:
            raise Overloaded(f"{_LIVE_LIMIT} runs of this tenant are under way; wait for one or cancel one")
        if thread.id in self._busy:
            raise ThreadBusy(f"a run is under way in thread {thread.name!r}: wait for it, cancel it, or use another")
        if self._closing.is_set():
            raise Unavailable("the gateway is stopping; ask again when it is back")
        self._busy[thread.id] = thread
        return thread

    async def _release_quotas(self, run_id: str) -> None:
        if self._quotas is not None:
            await self._quotas.release_run(run_id)

    async def _begin(
        self,
        run_id: str,
        tenant: Tenant,
        thread: Thread,
        task: str,
        agent_name: str,
        policy_mode: PolicyMode,
        request: tuple[str, str] | None = None,
    ) -> Run:
        models = self._models.setdefault(tenant.name, Models(telemetry=self._telemetry))
        try:
            for settings in tenant.agents[agent_name].models(tenant.model):
                models.of(settings)  # one without a key is told to whoever starts the run
            # The configuration may have changed since the policy was applied, and that has looked at the agents then.
            agents.check(tenant.agents[agent_name], tenant.model, tenant.policy.document)
            if await self._store.thread_chars(thread) > THREAD_LIMIT_CHARS:
                raise TooLarge(
                    f"thread: what was said in {thread.name!r} is over {THREAD_LIMIT_CHARS:,} characters; "
                    "start a new thread"
                )
            waiting = await self._waiting.store.in_thread(thread) if self._waiting is not None else None
            if waiting is not None:
                raise ThreadBusy(
                    f"the run {waiting} in thread {thread.name!r} waits for an approval: answer it, cancel the run, or "
                    "use another thread",
                    run_id=waiting,
                )
            run = await self._store.add_run(
                thread,
                agent=agent_name,
                task=task,
                policy_version=tenant.policy.version,
                policy_mode=policy_mode,
                run_id=run_id,
                request=request,
                checkpoint=SuspendedRun.of(
                    AgentState(run_id=run_id, thread=thread.name), _reference(tenant, policy_mode)
                ).model_dump_json(),
            )
        except BaseException as error:
            del self._busy[thread.id]
            await self._release_quotas(run_id)
            if isinstance(error, IntegrityError) and (other := await self._store.under_way(thread)) is not None:
                raise ThreadBusy(
                    f"the run {other} is under way in thread {thread.name!r}: wait for it, cancel it, or use another",
                    run_id=other,
                ) from None
            raise
        self._host(self._live_run(run, thread, Claim(run.id)), tenant)
        return run

    def _live_run(self, run: Run, thread: Thread, claim: Claim, last_sequence: int = 0) -> _Live:
        log_ = RunLog(claim, self._store, last_sequence=last_sequence, lost=lambda: self._abandon(work))
        work = _Live(run, thread, log_)
        return work

    def _host(self, work: _Live, tenant: Tenant, suspended: str | None = None) -> None:
        run = work.run
        self._live[run.id] = work
        work.task = asyncio.create_task(self._run_agent(work, tenant, suspended), name=f"run {run.id}")
        work.ended = asyncio.create_task(self._end(work, work.task), name=f"end of run {run.id}")
        if self._closing.is_set():
            work.task.cancel()

    async def _resume(self, ready: WaitingRun, waiting: WaitingRuns) -> None:
        """Go on with a run that waited, or whose gateway is lost, unless another gateway does."""
        thread = ready.thread
        if self._closing.is_set() or thread.id in self._busy:
            return
        self._busy[thread.id] = thread
        try:
            tenant = await waiting.tenant(thread.tenant)
            if self._quotas is not None:
                await self._quotas.hold_run(thread.tenant, ready.id, tenant.policy.document.quotas)
            # Read before it is claimed: once it is, nothing may fail before it is hosted.
            run = await self._store.run(thread.tenant, ready.id)
            claimed = await waiting.store.claim(ready) if run is not None else None
            if run is None or claimed is None:
                self._busy.pop(thread.id, None)
                await self._release_quotas(ready.id)
                return
        except QuotaExceeded:
            self._busy.pop(thread.id, None)
            return  # it waits for its turn as well
        except BaseException:
            self._busy.pop(thread.id, None)
            await self._release_quotas(ready.id)
            raise
        self._models.setdefault(tenant.name, Models(telemetry=self._telemetry))
        log.info("run goes on", run_id=run.id, tenant=run.tenant, thread=run.thread, because=ready.because)
        run = replace(run, status="running", last_sequence=claimed.last_sequence)
        work = self._live_run(run, thread, claimed.claim, claimed.last_sequence)
        work.because, work.cancelled = ready.because, ready.cancelled
        self._host(work, tenant, claimed.checkpoint)

    async def get(self, tenant: Tenant, run_id: str) -> Run:
        """Return a run; NotFound also when it is another tenant's."""
        run = await self._store.run(tenant.name, run_id)
        if run is None:
            raise NotFound(f"no run {run_id[:64]!r}: `airlock run` shows the id of each run it starts")
        return run

    async def watch(self, tenant: Tenant, run_id: str, from_sequence: int) -> AsyncIterator[LoggedEvent]:
        """Yield a run's events from a sequence number on, until the run has finished."""
        if from_sequence < 0:
            raise InvalidArgument("from_sequence: 0 or more")
        run = await self.get(tenant, run_id)
        sequence = max(1, from_sequence)
        while True:
            # Looked up before the events are read: what is stored after that is announced.
            live = self._live.get(run_id)
            page = await self._store.events_of(run_id, sequence, _EVENTS_PAGE)
            for event in page:
                yield event
                if event.type == "run_finished":
                    return
                sequence = event.sequence + 1
            if page:
                continue
            if live is not None:
                await live.log.wait(sequence - 1)
                continue
            # It waits for an approval, or another gateway has it; or its last event came in between.
            if run.status not in _UNDER_WAY:
                return
            if self._closing.is_set():
                raise Unavailable(f"the gateway is stopping; watch again from sequence {sequence} when it is back")
            run = await self.get(tenant, run_id)
            if run.status in _UNDER_WAY and run_id not in self._live and run.last_sequence < sequence:
                await self._pause(_WATCH_POLL_S)

    async def cancel(self, tenant: Tenant, run_id: str) -> Run:
        """Stop a run, down to its processes; a finished run stays as it is."""
        run = await self.get(tenant, run_id)
        live = self._live.get(run_id)
        if live is not None and live.task is not None and not live.cancelled:
            live.cancelled = True
            live.task.cancel()
        elif live is None and run.status in _UNDER_WAY:
            await self._cancel_elsewhere(run.id)
        return run

    async def _cancel_elsewhere(self, run_id: str) -> None:
        """End a run that waits; of one that another gateway hosts, or nobody, ask for its end."""
        if self._waiting is not None and await self._end_waiting(run_id, self._waiting):
            return
        await self._store.ask_to_cancel(run_id)
        if self._waiting is not None:
            self._waiting.look()

    async def _follow_cancels(self) -> None:
        """Cancel what is hosted here and was asked to end elsewhere, until cancelled."""
        while True:
            await asyncio.sleep(_CANCEL_POLL_S)
            try:
                asked = await self._store.asked_to_cancel() if self._live else ()
            except AirlockError as error:
                log.warning("what was cancelled elsewhere is not known", error=str(error))
                continue
            for run_id in asked:
                live = self._live.get(run_id)
                if live is not None and live.task is not None and not live.cancelled:
                    live.cancelled = True
                    live.task.cancel()

    def abandon_all(self) -> None:
        """End all that is hosted here without a word: others may have it."""
        for work in list(self._live.values()):
            self._abandon(work)

    def _abandon(self, work: _Live) -> None:
        """End a run here, and leave all that is written of it as it is."""
        if work.task is None or (work.log.complete and not work.log.abandoned):
            return  # its end is being written, if it is ours still
        work.abandoned = True
        work.log.abandon()
        if work.journal is not None:
            work.journal.abandon()
        work.task.cancel()

    async def _end_waiting(self, run_id: str, waiting: WaitingRuns) -> bool:
        """End a run while it waits, and what it asked."""
        finished = _finished("cancelled", "gateway", "cancelled", "the run was cancelled")
        if await waiting.store.end(run_id, finished):
            await waiting.approvals.cancel_open(run_id)
            log.info("run finished", run_id=run_id, status="cancelled")
            return True
        return False

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closing.wait()

    async def close(self) -> None:
        """Cancel every live run, or hand it over, and wait until what is to be stored is; no run starts after this.

        A run that waits is left alone: it goes on when a gateway is back.
        """
        self._closing.set()
        if self._waker is not None:
            self._waker.cancel()
            await asyncio.gather(self._waker, return_exceptions=True)
        self._canceller.cancel()
        await asyncio.gather(self._canceller, return_exceptions=True)
        live = list(self._live.values())
        for work in live:
            if self._on_stop == "hand_over" and not work.cancelled:
                work.handed_over = True
                self._abandon(work)
            elif work.task is not None:
                work.task.cancel()
        await asyncio.gather(*(work.ended for work in live if work.ended is not None))
        await asyncio.gather(*(models.close() for models in self._models.values()))

    async def _end(self, work: _Live, task: asyncio.Task[None]) -> None:
        """Wait for a run and settle it. Nobody cancels this task, so a run's last event is always stored."""
        await asyncio.wait({task})
        try:
            task.result()
        except asyncio.CancelledError:
            self._log_event(work, _finished("cancelled", "gateway", "cancelled", "the run was cancelled"))
        except _Interrupted:
            self._log_event(work, _finished("failed", "gateway", "interrupted", INTERRUPTED_REASON))
        except (AgentError, AirlockError) as error:
            self._log_event(work, _finished("failed", "gateway", "error", str(error)))
        except Exception as error:
            log.exception("run failed", run_id=work.run.id)
            fault = f"a fault of the gateway: {type(error).__name__}"
            self._log_event(work, _finished("failed", "gateway", "fault", fault))
        try:
            await work.log.close()
            if not work.abandoned:
                await self._settle_approvals(work)
            elif work.handed_over:
                await self._hand_over(work)
            await self._release_quotas(work.run.id)
        finally:
            self._live.pop(work.run.id, None)
            self._busy.pop(work.thread.id, None)

    async def _hand_over(self, work: _Live) -> None:
        """Let others take a run, now that nothing of it happens here any more."""
        try:
            await self._store.hand_over(work.log.claim)
            log.info("run is handed over", run_id=work.run.id, tenant=work.run.tenant, thread=work.run.thread)
        except AirlockError as error:
            log.warning("a run is found when the lease is over", run_id=work.run.id, error=str(error))

    async def _settle_approvals(self, work: _Live) -> None:
        """Take back what a run that is over has asked; end one that was cancelled just as it began to wait."""
        if self._waiting is None:
            return
        try:
            if not work.suspended:
                await self._waiting.approvals.cancel_open(work.run.id)
            elif work.cancelled:
                await self._end_waiting(work.run.id, self._waiting)
        except AirlockError as error:
            log.warning("approvals of a run are left as they are", run_id=work.run.id, error=str(error))

    def _log_event(self, work: _Live, event: Event) -> None:
        """Take an event of a run; one that nobody asked to cancel was cancelled by the gateway's end."""
        if work.abandoned or work.told.has(event):
            if event.type != "run_started" or work.abandoned:
                return
            # It has begun once already, and not come to its first step.
            event = Event("run_resumed", {"step": 0, "agent": work.run.agent, "thread": work.run.thread})
        if event.type == "run_resumed":
            event = Event(event.type, {**event.payload, "because": work.because})
        facts = {"run_id": work.run.id, "tenant": work.run.tenant, "thread": work.run.thread}
        if event.type == "hook_failed":
            # Not the error's text, which may hold what a tenant wrote: the event has it.
            told = {name: event.payload.get(name) for name in ("hook", "point", "on_failure", "timeout_s")}
            log.warning("hook failed", **facts, **told, error=str(event.payload.get("error")).partition(":")[0])
        elif event.type == "run_finished":
            if event.payload.get("status") == "cancelled" and not work.cancelled:
                event = Event(event.type, {**event.payload, "stop": _GATEWAY_STOPPED})
            told = {name: event.payload.get(name) for name in ("status", "stop", "spent")}
            log.info("run finished", **facts, **told)
        elif event.type == "run_suspended":
            work.suspending = event  # stored with the run's state, when that is known
            return
        work.log.emit(event)

    async def _recall(self, live: _Live, stored: str | None) -> None:
        """Find what an earlier gateway told of a run, and settle its calls that were under way, if none goes on."""
        run_id, claim = live.run.id, live.log.claim
        checkpoint = SuspendedRun.model_validate_json(stored) if stored is not None else None
        since = checkpoint.sequence if checkpoint is not None else 0
        live.told = ToldEvents(await patiently(partial(self._store.told_since, run_id, since), run_id))
        if live.because == "approval":
            return
        if live.cancelled or checkpoint is None or checkpoint.state.pending is None:
            await patiently(partial(self._store.take_over_calls, claim, ()), run_id)
        if live.cancelled:
            raise asyncio.CancelledError
        if checkpoint is None:
            raise _Interrupted  # it was started by a version that kept nothing to go on from

    async def _run_agent(self, live: _Live, tenant: Tenant, stored: str | None) -> None:
        run, thread = live.run, live.thread
        if live.because:
            await self._recall(live, stored)
        suspended = SuspendedRun.model_validate_json(stored) if stored is not None else None
        if suspended is not None and suspended.policy and self._waiting is not None:
            pinned = partial(self._waiting.tenant, tenant.name, suspended.policy)
            tenant = await patiently(pinned, run.id)
        elif run.policy_mode == "pin":
            tenant = tenant.pinned()
        if run.agent not in tenant.agents:
            raise NotFound(f"the agent {run.agent!r} of this run is not configured any more")
        settings = tenant.agents[run.agent]
        tool_path = self._tool_calls.tool_path(tenant, thread, run.id, run.agent)
        model_of = self._models[tenant.name].of
        state = suspended.state if suspended is not None else AgentState(run_id=run.id, thread=thread.name)

        async def as_stored() -> AgentState:
            messages, metadata = await self._store.messages_of(thread), await self._store.metadata_of(thread)
            return state.with_(agent=run.agent, messages=messages, metadata=metadata)

        # A run that waited has been taken out of its wait: what cannot be read now must not be its end.
        kept = await (as_stored() if suspended is None else patiently(as_stored, run.id))
        reference = _reference(tenant, run.policy_mode)
        approver = tool_path.approver if self._waiting is not None else None
        checkpoints = Checkpoints(
            live.log, tool_path.journal, reference, *(() if approver is None else (approver.not_begun,))
        )
        history = checkpoints.history = ThreadHistoryHook(checkpoints, thread, kept)
        recorder = TraceLog(tenant=tenant.name, thread=thread.name, run_id=run.id)
        agent = Agent(
            model=model_of(settings.model or tenant.model),
            name=run.agent,
            capabilities=agents.build(
                settings, tenant.model, tenant.policy.document, tool_path.workspace, model_of, recorder
            ),
            hooks=(*tool_path.hooks, history),
            system_prompt=settings.system_prompt,
            approver=approver,
            recovery=checkpoints,
        )
        live.journal = tool_path.journal
        live.journal.host(live.log.claim, [spec.name for spec in agent.executor.specs() if spec.read_only])
        begin = kept if kept.started else kept.say(Message(role="user", content=run.task))
        structlog.contextvars.bind_contextvars(tenant=run.tenant, run_id=run.id, thread=run.thread)
        with hosted(
            self._telemetry, begin, tool_path.hooks, tenant=run.tenant, agent=run.agent, model=agent.model.name
        ) as seen:
            events = redacted_events(tool_path.redactor, partial(self._log_event, live))
            state = await agent.run(begin, seen.hearing(events))
        if state.pending is not None and live.suspending is not None:
            live.suspended = True
            live.log.suspend(live.suspending, checkpoints.stored(state, 1), history.added(state))
            log.info("run waits", run_id=run.id, tenant=run.tenant, thread=run.thread)


def _reference(tenant: Tenant, policy_mode: str) -> str:
    """Return what names the policy that a run is pinned to."""
    return tenant.policy_reference if policy_mode == "pin" else ""


def _finished(status: str, hook: str, rule: str, reason: str) -> Event:
    return Event(
        "run_finished", {"status": status, "stop": {"hook": hook, "rule": rule, "reason": reason}, "answer": ""}
    )
