"""Runs: starting, watching and cancelling them. A run is a task in this process and an event log in the database.

A run that waits for an approval has no task: its state is in the database, and a gateway that finds all its approvals
answered continues it (gateway/runs/waiting_runs.py). A run whose gateway is lost or was stopped is taken over from its
last checkpoint (gateway/runs/checkpoints.py); writes of its old gateway are then refused.

    hosting.py        the runs under way here: begin, takeover, one run's agent from state to end
    live_run.py       the events that a run emits
    checkpoints.py    what a run continues from
    task_attachments.py  the files that come with the task
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

from agent.cancellation import ended
from agent.messages import Attachment
from agent.state import AgentState
from gateway.agents import agents
from gateway.errors import (
    AirlockError,
    InProgress,
    InvalidArgument,
    NotFound,
    OtherEngine,
    Overloaded,
    RequestIdReused,
    ThreadBusy,
    TooLarge,
    Unavailable,
)
from gateway.runs.checkpoints import THREAD_LIMIT_CHARS, SuspendedRun
from gateway.runs.hosting import LIVE_LIMIT, Hosting, RunParts, policy_reference
from gateway.runs.live_run import LiveRun
from gateway.runs.task_attachments import task_attachments
from gateway.storage.call_journal import is_of_deletion
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import LoggedEvent, Run, Thread
from gateway.storage.store import NewRun
from gateway.storage.tables import RUNS_UNDER_WAY
from gateway.support.background import Periodic, pause
from gateway.support.clock import make_id
from gateway.tenancy.tenants import Tenant

_TASK_LIMIT_CHARS = 262_144
_EVENTS_PAGE = 200
# How soon watchers see the events of a run that waits or that another gateway hosts.
_WATCH_POLL_S = 0.3
# How soon a run ends that was cancelled on another gateway.
_CANCEL_POLL_S = 0.25
PolicyMode = Literal["pin", "follow"]


@dataclass(frozen=True)
class RunRequest:
    """A request for a run. `thread` is "" for a new thread; `id` is the request id, "" for none.

    A run with `policy_mode` pin is judged by the policy in force now until its end, one with follow by the policy in
    force at each moment. `attachments` are paths in the thread's workspace, of files that the model is shown.
    """

    task: str
    thread: str = ""
    agent: str = "default"
    policy_mode: PolicyMode = "pin"
    id: str = ""
    attachments: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of what is requested, in hex."""
        attached = [self.attachments] if self.attachments else []
        fields = json.dumps([self.task, self.thread, self.agent, self.policy_mode, *attached])
        return hashlib.sha256(fields.encode("utf-8", "surrogatepass")).hexdigest()


class Runs:
    """Hosts the runs of every tenant."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._waiting = parts.waiting
        self._hosting = Hosting(parts)
        self._starting: dict[tuple[str, str], tuple[RunRequest, asyncio.Task[Run]]] = {}
        self.live: Mapping[str, LiveRun] = self._hosting.live
        """The runs hosted here, by id."""
        self.abandon_all = self._hosting.abandon_all
        failed = "runs that were cancelled elsewhere are not known"
        cancelled = Periodic(self._cancel_requested, _CANCEL_POLL_S, failed, (AirlockError,))
        self._following = [
            asyncio.create_task(cancelled.repeat(at_once=False), name="cancelled elsewhere"),
            asyncio.create_task(parts.waiting.follow(self._hosting.take), name="unhosted runs"),
        ]

    async def start(self, tenant: Tenant, asked: RunRequest) -> Run:
        """Start a run and return it; its first event is stored soon after. Of a repeated request id, the same run.

        If its thread's files are on another engine, a gateway there hosts it; OtherEngine if none is serving. Between
        gateways, the unique constraint on runs.request_id ensures that a request starts one run; within one gateway,
        later requests wait for the first. Raises RequestIdReused.
        """
        if not asked.id:
            return await self._start(tenant, asked)
        key = (tenant.name, asked.id)
        if key not in self._starting and (stored := await self._requested_before(tenant, asked)) is not None:
            return stored
        # Nothing is awaited from here to the task: of two concurrent requests, the second finds the first's task.
        if key not in self._starting:
            task = asyncio.create_task(self._start_or_stored(tenant, asked), name=f"start of a run {asked.id}")
            self._starting[key] = asked, task
            task.add_done_callback(lambda done: self._start_over(key, done))
        first, task = self._starting[key]
        if first != asked:
            raise _reused(asked)
        return await asyncio.shield(task)

    def _start_over(self, key: tuple[str, str], task: asyncio.Task[Run]) -> None:
        self._starting.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it when no caller waits any more

    async def _start_or_stored(self, tenant: Tenant, asked: RunRequest) -> Run:
        try:
            return await self._start(tenant, asked)
        except (AirlockError, ConstraintViolated) as error:
            # Another gateway may have been first: then its run is what prevents this one.
            if (stored := await self._requested_before(tenant, asked)) is not None:
                return stored
            if isinstance(error, ConstraintViolated):
                raise InProgress(f"request {asked.id!r} is still running: repeat it in a moment") from error
            raise

    async def _requested_before(self, tenant: Tenant, asked: RunRequest) -> Run | None:
        found = await self._store.run_of(tenant.name, asked.id)
        if found is None:
            return None
        run_id, digest = found
        if digest != asked.digest:
            raise _reused(asked)
        return await self.get(tenant, run_id)

    async def _start(self, tenant: Tenant, asked: RunRequest) -> Run:
        if not asked.task or len(asked.task) > _TASK_LIMIT_CHARS:
            raise InvalidArgument(f"task: between 1 and {_TASK_LIMIT_CHARS:,} characters")
        if asked.agent not in tenant.agents:
            raise InvalidArgument(f"agent: {asked.agent[:64]!r} is not one of {', '.join(sorted(tenant.agents))}")
        tenant = tenant.pinned() if asked.policy_mode == "pin" else tenant
        # These first: a refused run leaves nothing behind, not even its thread.
        self._check_agent(tenant, asked.agent)
        calls = self._parts.tool_calls
        attachments = await task_attachments(calls, tenant, asked.agent, asked.thread, asked.attachments)
        run_id, name = make_id("run"), asked.thread or make_id("thread")
        await self._parts.quotas.hold_run(tenant.name, run_id, tenant.policy.document.quotas)
        here = True
        try:
            try:
                thread = await self._reserved(tenant, name)
            except OtherEngine as elsewhere:
                thread, here = await self._placed(tenant, name, elsewhere), False
        except BaseException:
            await self._parts.quotas.release_run(run_id)
            raise
        # Shielded: a caller that goes away must not leave a stored run without a host.
        begun = self._begin(run_id, tenant, thread, asked, attachments, here=here)
        return await asyncio.shield(asyncio.create_task(begun))

    async def _placed(self, tenant: Tenant, name: str, elsewhere: OtherEngine) -> Thread:
        """Return a thread whose files are on another engine; OtherEngine if no gateway of that engine is serving.

        Its run is recorded here and hosted there: a gateway of that engine finds it among the unhosted runs
        (gateway/runs/waiting_runs.py). Any gateway can watch and cancel it.
        """
        self._refuse_closing()
        engine, waiting = elsewhere.details["engine"], self._waiting.store
        if not await waiting.serves(engine):
            raise OtherEngine(f"{elsewhere}. No gateway is currently serving that engine", engine=engine)
        if await waiting.queued(tenant.name) >= LIVE_LIMIT:
            raise Overloaded(
                f"{LIVE_LIMIT} runs of this tenant wait for a gateway on another engine, which is the limit: wait "
                "for one or cancel one"
            )
        return await self._store.thread(tenant.name, name)

    async def _reserved(self, tenant: Tenant, thread_name: str) -> Thread:
        hosting = self._hosting
        thread = await self._parts.tool_calls.thread(tenant, thread_name)
        # Nothing may be awaited between check and reservation, or two runs would pass.
        if hosting.full(tenant.name):
            raise Overloaded(
                f"this tenant already has {LIVE_LIMIT} active runs, which is the limit: wait for one or cancel one"
            )
        if thread.id in hosting.busy:
            raise ThreadBusy(
                f"thread {thread.name!r} is busy with a run: wait for it, cancel it, or use another thread"
            )
        self._refuse_closing()
        hosting.busy[thread.id] = thread
        return thread

    def _refuse_closing(self) -> None:
        if self._hosting.closing.is_set():
            raise Unavailable("the gateway is shutting down: try again when it is back")

    async def _begin(
        self,
        run_id: str,
        tenant: Tenant,
        thread: Thread,
        asked: RunRequest,
        attachments: tuple[Attachment, ...],
        *,
        here: bool,
    ) -> Run:
        state = AgentState(run_id=run_id, thread=thread.name)
        begin = SuspendedRun(state=state, policy=policy_reference(tenant, asked.policy_mode), attachments=attachments)
        new = NewRun(
            asked.agent,
            asked.task,
            tenant.policy.version,
            asked.policy_mode,
            id=run_id,
            request=(asked.id, asked.digest) if asked.id else None,
            checkpoint=begin.model_dump_json(),
            hosted=here,
        )
        try:
            await self._check_thread(thread)
            run = await self._store.add_run(thread, new)
        except BaseException as error:
            if here:
                del self._hosting.busy[thread.id]
            await self._parts.quotas.release_run(run_id)
            if isinstance(error, ConstraintViolated):
                await self._raise_busy(error, tenant, thread)
            raise
        if here:
            self._hosting.start(run, thread, tenant, attachments)
        else:
            await self._parts.quotas.release_run(run_id)  # its row counts until a gateway hosts it
        return run

    async def _raise_busy(self, error: ConstraintViolated, tenant: Tenant, thread: Thread) -> None:
        """Raise ThreadBusy if a constraint refused a run because of its thread."""
        if is_of_deletion(error):
            self._parts.tool_calls.forget_thread(tenant, thread.name)
            raise ThreadBusy(f"thread {thread.name!r} was being deleted or restored: start the run again") from None
        if (other := await self._store.under_way(thread)) is not None:
            raise ThreadBusy(
                f"thread {thread.name!r} is busy with run {other}: wait for it, cancel it, or use another thread",
                run_id=other,
            ) from None

    def _check_agent(self, tenant: Tenant, agent_name: str) -> None:
        """Raise what keeps a run of an agent from starting in any thread."""
        settings = tenant.agents[agent_name]
        list(settings.models(tenant.model, agent_name))  # Misconfigured, for a model without a key
        # The configuration may have changed since the policy was applied and checked against the agents.
        agents.check(settings, tenant.model, tenant.policy.document)

    async def _check_thread(self, thread: Thread) -> None:
        """Raise what keeps a run from starting in a thread."""
        chars, waiting = await self._store.before_run(thread)
        if chars > THREAD_LIMIT_CHARS:
            raise TooLarge(
                f"thread: the messages of {thread.name!r} exceed {THREAD_LIMIT_CHARS:,} characters; start a new thread"
            )
        if waiting is not None:
            raise ThreadBusy(
                f"run {waiting} in thread {thread.name!r} is waiting for an approval: answer it, cancel the run, "
                "or use another thread",
                run_id=waiting,
            )

    async def get(self, tenant: Tenant, run_id: str) -> Run:
        """Return a run; NotFound also for another tenant's run."""
        run = await self._store.run(tenant.name, run_id)
        if run is None:
            raise NotFound(f"run {run_id[:64]!r} not found: `airlock runs list` lists the runs")
        return run

    async def watch(self, tenant: Tenant, run_id: str, from_sequence: int) -> AsyncIterator[LoggedEvent]:
        """Yield a run's events from a sequence number until the run has finished, wherever it is hosted.

        They are read from the database, never from a live buffer.
        """
        if from_sequence < 0:
            raise InvalidArgument("from_sequence: 0 or more")
        run, closing = await self.get(tenant, run_id), self._hosting.closing
        sequence = max(1, from_sequence)
        while True:
            # Before the events are read, so that a log that has none of them yet costs no reading.
            live = self.live.get(run_id)
            if live is not None:
                await live.log.wait(sequence - 1)
            page = await self._store.events_of(run_id, sequence, _EVENTS_PAGE)
            for event in page:
                yield event
                if event.type == "run_finished":
                    return
                sequence = event.sequence + 1
            if page:
                continue
            if live is not None:
                if live.log.abandoned and not closing.is_set():
                    await pause(closing, _WATCH_POLL_S)  # until the run has ended here, or others have it
                continue
            # The run waits for an approval, another gateway has it, or its last event was just stored.
            if run.status not in RUNS_UNDER_WAY:
                return
            if closing.is_set():
                raise Unavailable(f"the gateway is shutting down: watch again from sequence {sequence} when it is back")
            run = await self.get(tenant, run_id)
            if run.status in RUNS_UNDER_WAY and run_id not in self.live and run.last_sequence < sequence:
                await pause(closing, _WATCH_POLL_S)

    async def cancel(self, tenant: Tenant, run_id: str) -> Run:
        """Stop a run and its processes, wherever it is hosted; a finished run stays as it is."""
        run = await self.get(tenant, run_id)
        live = self.live.get(run.id)
        if live is not None and not live.abandoned:
            live.cancel()
        elif run.status in RUNS_UNDER_WAY and not await self._waiting.end(run.id):
            # The gateway that hosts it, now or later, ends it.
            await self._store.ask_to_cancel(run.id)
            self._waiting.look()
        return run

    async def _cancel_requested(self) -> None:
        """Cancel the runs hosted here whose end was requested on another gateway."""
        for run_id in await self._store.asked_to_cancel() if self.live else ():
            if (live := self.live.get(run_id)) is not None:
                live.cancel()

    async def stop_following(self) -> None:
        await ended(*self._following)

    async def close(self) -> None:
        """Cancel or hand over every live run and wait until everything is stored; no run starts after this.

        A run that waits stays: it continues when a gateway is back.
        """
        self._hosting.closing.set()
        await self.stop_following()
        await self._hosting.close()


def _reused(asked: RunRequest) -> RequestIdReused:
    return RequestIdReused(f"request_id: {asked.id!r} was already used for a different run; use a new one for each run")
