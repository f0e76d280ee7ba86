"""Runs: starting them, following them, stopping them. A run is a task here and an event log in the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import structlog
from pydantic import JsonValue

from agent.errors import AgentError
from agent.events import Event
from agent.loop import Agent
from agent.messages import Message
from agent.state import AgentState
from gateway import agents
from gateway.clock import MakeId, make_id
from gateway.errors import AirlockError, InvalidArgument, NotFound, Overloaded, ThreadBusy, TooLarge, Unavailable
from gateway.models import Models
from gateway.run_log import RunLog
from gateway.storage.store import LoggedEvent, Run, Store, Thread
from gateway.tenants import Tenant
from gateway.thread_history import THREAD_LIMIT_CHARS, ThreadHistoryHook
from gateway.tool_calls import ToolCalls
from gateway.trace_log import TraceLog

log = structlog.get_logger(__name__)
_TASK_LIMIT_CHARS = 262_144
_EVENTS_PAGE = 200
# Runs at once of one tenant; one run at a time in a thread, for both would write the same history.
_LIVE_LIMIT = 32
_GATEWAY_STOPPED: dict[str, JsonValue] = {
    "hook": "gateway",
    "rule": "gateway_stopped",
    "reason": "the gateway was stopped while the run was under way; start it again",
}


@dataclass
class _Live:
    run: Run
    thread: Thread
    log: RunLog
    cancelled: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    ended: asyncio.Task[None] | None = field(default=None, repr=False)


class Runs:
    """Hosts the runs of every tenant."""

    def __init__(self, store: Store, tool_calls: ToolCalls, ids: MakeId = make_id) -> None:
        self._store = store
        self._tool_calls = tool_calls
        self._ids = ids
        self._live: dict[str, _Live] = {}
        self._models: dict[str, Models] = {}
        self._busy: dict[str, Thread] = {}
        self._closing = False

    async def start(self, tenant: Tenant, task: str, thread_name: str, agent_name: str) -> Run:
        """Start a run and return it; its first event is stored soon after."""
        agent_name = agent_name or "default"
        if not task or len(task) > _TASK_LIMIT_CHARS:
            raise InvalidArgument(f"task: between 1 and {_TASK_LIMIT_CHARS:,} characters")
        if agent_name not in tenant.agents:
            raise InvalidArgument(f"agent: {agent_name[:64]!r} is not one of {', '.join(sorted(tenant.agents))}")
        thread = await self._tool_calls.thread(tenant, thread_name or self._ids("thread"))
        # Between the look and the taking nothing may be awaited, or two would pass at once.
        mine = [busy for busy in self._busy.values() if busy.tenant == tenant.name]
        if len(mine) >= _LIVE_LIMIT:
            raise Overloaded(f"{_LIVE_LIMIT} runs of this tenant are under way; wait for one or cancel one")
        if thread.id in self._busy:
            raise ThreadBusy(f"a run is under way in thread {thread.name!r}: wait for it, cancel it, or use another")
        if self._closing:
            raise Unavailable("the gateway is stopping; ask again when it is back")
        self._busy[thread.id] = thread
        # Shielded: a caller that goes away meanwhile must not leave a stored run that nobody hosts.
        return await asyncio.shield(asyncio.create_task(self._begin(tenant, thread, task, agent_name)))

    async def _begin(self, tenant: Tenant, thread: Thread, task: str, agent_name: str) -> Run:
        models = self._models.setdefault(tenant.name, Models())
        try:
            for settings in tenant.agents[agent_name].models(tenant.model):
                models.of(settings)  # one without a key is told to whoever starts the run
            if await self._store.thread_chars(thread) > THREAD_LIMIT_CHARS:
                raise TooLarge(
                    f"thread: what was said in {thread.name!r} is over {THREAD_LIMIT_CHARS:,} characters; "
                    "start a new thread"
                )
            run = await self._store.add_run(thread, agent=agent_name, task=task, policy_version=tenant.policy.version)
        except BaseException:
            del self._busy[thread.id]
            raise
        work = _Live(run, thread, RunLog(run.id, self._store))
        self._live[run.id] = work
        work.task = asyncio.create_task(self._run_agent(work, tenant), name=f"run {run.id}")
        work.ended = asyncio.create_task(self._end(work, work.task), name=f"end of run {run.id}")
        if self._closing:
            work.task.cancel()
        return run

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
        await self.get(tenant, run_id)
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
            if live is None:
                return
            await live.log.wait(sequence - 1)

    async def cancel(self, tenant: Tenant, run_id: str) -> Run:
        """Stop a run, down to its processes; a finished run stays as it is."""
        run = await self.get(tenant, run_id)
        live = self._live.get(run_id)
        if live is not None and live.task is not None and not live.cancelled:
            live.cancelled = True
            live.task.cancel()
        return run

    async def close(self) -> None:
        """Cancel every live run and wait until their last events are stored; no run starts after this."""
        self._closing = True
        live = list(self._live.values())
        for work in live:
            if work.task is not None:
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
        except (AgentError, AirlockError) as error:
            self._log_event(work, _finished("failed", "gateway", "error", str(error)))
        except Exception as error:
            log.exception("run failed", run_id=work.run.id)
            fault = f"a fault of the gateway: {type(error).__name__}"
            self._log_event(work, _finished("failed", "gateway", "fault", fault))
        try:
            await work.log.close()
        finally:
            self._live.pop(work.run.id, None)
            self._busy.pop(work.thread.id, None)

    def _log_event(self, work: _Live, event: Event) -> None:
        """Take an event of a run; one that nobody asked to cancel was cancelled by the gateway's end."""
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
        work.log.emit(event)

    async def _run_agent(self, live: _Live, tenant: Tenant) -> None:
        run, thread = live.run, live.thread
        settings = tenant.agents[run.agent]
        tool_path = self._tool_calls.tool_path(tenant, thread, run.id)
        model_of = self._models[tenant.name].of
        kept = AgentState(
            run_id=run.id,
            thread=thread.name,
            agent=run.agent,
            messages=await self._store.messages_of(thread),
            metadata=await self._store.metadata_of(thread),
        )
        recorder = TraceLog(tenant=tenant.name, thread=thread.name, run_id=run.id)
        agent = Agent(
            model=model_of(settings.model or tenant.model),
            name=run.agent,
            capabilities=agents.build(
                settings, tenant.model, tenant.policy.document, tool_path.sandbox, model_of, recorder
            ),
            hooks=(*tool_path.hooks, ThreadHistoryHook(self._store, thread, kept)),
            system_prompt=settings.system_prompt,
        )
        await agent.run(kept.say(Message(role="user", content=run.task)), partial(self._log_event, live))


def _finished(status: str, hook: str, rule: str, reason: str) -> Event:
    return Event(
        "run_finished", {"status": status, "stop": {"hook": hook, "rule": rule, "reason": reason}, "answer": ""}
    )
