"""Runs: starting them, following them, stopping them. A run is a task here and an event log in the database.

A run that waits for an approval is no task anywhere: its state is in the database, and a gateway that finds nothing of
it asked any more takes it and goes on (gateway/runs/waiting_runs.py). So is one whose gateway is lost, or was stopped:
it is taken over from its last checkpoint (gateway/runs/checkpoints.py), and what its old gateway writes is refused.

    hosting.py     which runs are under way here, and their end      agent_run.py    one run's agent, from state to end
    taking_over.py runs that nobody hosts                            cancelling.py   ending runs, wherever they are
    watching.py    a run's events                                    live_run.py     what a run tells of itself
    placing.py     runs whose files are on another engine              saved_steps.py  files kept after a step
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal

from agent.state import AgentState
from gateway.agents import agents
from gateway.agents.models import Models
from gateway.errors import InvalidArgument, OtherEngine, Overloaded, ThreadBusy, TooLarge, Unavailable
from gateway.runs.agent_run import AgentRuns, EndCalls, policy_reference
from gateway.runs.cancelling import Cancelling
from gateway.runs.hosting import LIVE_LIMIT, Hosting, OnStop
from gateway.runs.live_run import LiveRun
from gateway.runs.placing import Placing
from gateway.runs.saved_steps import KeepFiles
from gateway.runs.suspended_run import SuspendedRun
from gateway.runs.taking_over import TakingOver
from gateway.runs.thread_history import THREAD_LIMIT_CHARS
from gateway.runs.waiting_runs import WaitingRuns
from gateway.runs.watching import stored_run, watched
from gateway.storage.call_journal import is_of_deletion
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import LoggedEvent, Run, Thread
from gateway.storage.store import Store
from gateway.support.clock import MakeId, make_id
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls

_TASK_LIMIT_CHARS = 262_144
PolicyMode = Literal["pin", "follow"]


class Runs:
    """Hosts the runs of every tenant."""

    def __init__(
        self,
        store: Store,
        tool_calls: ToolCalls,
        *,
        waiting: WaitingRuns,
        quotas: Quotas,
        on_stop: OnStop,
        ids: MakeId = make_id,
        telemetry: Telemetry | None = None,
        models: Mapping[str, Models] | None = None,
        end_calls: EndCalls | None = None,
        lease_over: Callable[[], bool] = lambda: False,
        keep_files: KeepFiles | None = None,
    ) -> None:
        """`on_stop` says what becomes of live runs when this is closed.

        `models` are those of some tenants by their names. `end_calls` ends what a gateway that is lost has under way in
        a thread's sandbox; `lease_over` says whether this one is lost itself, as far as it knows. `keep_files` keeps a
        thread's files after a step, where the policy asks for it.
        """
        self._store = store
        self._tool_calls = tool_calls
        self._ids = ids
        self._waiting = waiting
        self._agent_runs = AgentRuns(
            store,
            tool_calls,
            waiting,
            telemetry or Telemetry.off(),
            dict(models or {}),
            end_calls,
            lease_over,
            keep_files,
        )
        self._hosting = Hosting(store, self._agent_runs, waiting, quotas, on_stop)
        self._cancelling = Cancelling(store, self._hosting, waiting)
        self._placing = Placing(store, self._hosting, waiting)
        self._following = [asyncio.create_task(self._cancelling.follow(), name="cancelled elsewhere")]
        taking = TakingOver(store, self._hosting, self._agent_runs)
        self._following.append(asyncio.create_task(waiting.follow(taking.take), name="runs that nobody hosts"))

    @property
    def live(self) -> Mapping[str, LiveRun]:
        """The runs that are hosted here, by their ids."""
        return self._hosting.live

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

        Where its thread's files are on another engine, a gateway there hosts it; OtherEngine where none serves.
        One that pins is judged by the policy that is in force now to its end, one that follows by whatever is in force.
        """
        agent_name = agent_name or "default"
        if not task or len(task) > _TASK_LIMIT_CHARS:
            raise InvalidArgument(f"task: between 1 and {_TASK_LIMIT_CHARS:,} characters")
        if agent_name not in tenant.agents:
            raise InvalidArgument(f"agent: {agent_name[:64]!r} is not one of {', '.join(sorted(tenant.agents))}")
        tenant = tenant.pinned() if policy_mode == "pin" else tenant
        # These first: a run that is refused leaves nothing, not even its thread.
        self._check_agent(tenant, agent_name)
        run_id = self._ids("run")
        await self._hosting.hold_quotas(tenant, run_id)
        try:
            thread, here = await self._found(tenant, thread_name or self._ids("thread"))
        except BaseException:
            await self._hosting.release_quotas(run_id)
            raise
        # Shielded: a caller that goes away meanwhile must not leave a stored run that nobody hosts.
        begun = asyncio.create_task(
            self._begin(run_id, tenant, thread, task, agent_name, policy_mode, request, here=here)
        )
        return await asyncio.shield(begun)

    async def _found(self, tenant: Tenant, thread_name: str) -> tuple[Thread, bool]:
        """Return the thread of a new run, and whether the run is hosted here, the thread busy with it."""
        try:
            return await self._reserved(tenant, thread_name), True
        except OtherEngine as elsewhere:
            return await self._placing.thread(tenant, thread_name, elsewhere), False

    async def _reserved(self, tenant: Tenant, thread_name: str) -> Thread:
        """Return a thread that is busy with a new run from now on."""
        hosting = self._hosting
        thread = await self._tool_calls.thread(tenant, thread_name)
        # Between the look and the taking nothing may be awaited, or two would pass at once.
        if hosting.full(tenant.name):
            raise Overloaded(f"{LIVE_LIMIT} runs of this tenant are under way; wait for one or cancel one")
        if thread.id in hosting.busy:
            raise ThreadBusy(f"a run is under way in thread {thread.name!r}: wait for it, cancel it, or use another")
        if hosting.closing.is_set():
            raise Unavailable("the gateway is stopping; ask again when it is back")
        hosting.busy[thread.id] = thread
        return thread

    async def _begin(
        self,
        run_id: str,
        tenant: Tenant,
        thread: Thread,
        task: str,
        agent_name: str,
        policy_mode: PolicyMode,
        request: tuple[str, str] | None = None,
        *,
        here: bool = True,
    ) -> Run:
        try:
            await self._check_thread(thread)
            run = await self._store.add_run(
                thread,
                agent=agent_name,
                task=task,
                policy_version=tenant.policy.version,
                policy_mode=policy_mode,
                run_id=run_id,
                request=request,
                hosted=here,
                checkpoint=SuspendedRun.of(
                    AgentState(run_id=run_id, thread=thread.name), policy_reference(tenant, policy_mode)
                ).model_dump_json(),
            )
        except BaseException as error:
            if here:
                del self._hosting.busy[thread.id]
            await self._hosting.release_quotas(run_id)
            if isinstance(error, ConstraintViolated) and is_of_deletion(error):
                self._tool_calls.forget_thread(tenant, thread.name)
                raise ThreadBusy(
                    f"thread {thread.name!r} is being deleted or restored, or was just now: start the run again"
                ) from None
            if isinstance(error, ConstraintViolated) and (other := await self._store.under_way(thread)) is not None:
                raise ThreadBusy(
                    f"the run {other} is under way in thread {thread.name!r}: wait for it, cancel it, or use another",
                    run_id=other,
                ) from None
            raise
        if here:
            self._hosting.start(run, thread, tenant)
        else:
            await self._hosting.release_quotas(run_id)  # it counts by its row until somebody hosts it
        return run

    def _check_agent(self, tenant: Tenant, agent_name: str) -> None:
        """Raise what keeps a run of an agent from starting in any thread."""
        models = self._agent_runs.models_of(tenant)
        for settings in tenant.agents[agent_name].models(tenant.model):
            models.of(settings)  # one without a key is told to whoever starts the run
        # The configuration may have changed since the policy was applied, and that has looked at the agents then.
        agents.check(tenant.agents[agent_name], tenant.model, tenant.policy.document)

    async def _check_thread(self, thread: Thread) -> None:
        """Raise what keeps a run from starting in a thread."""
        if await self._store.thread_chars(thread) > THREAD_LIMIT_CHARS:
            raise TooLarge(
                f"thread: what was said in {thread.name!r} is over {THREAD_LIMIT_CHARS:,} characters; "
                "start a new thread"
            )
        waiting = await self._waiting.store.in_thread(thread)
        if waiting is not None:
            raise ThreadBusy(
                f"the run {waiting} in thread {thread.name!r} waits for an approval: answer it, cancel the run, or "
                "use another thread",
                run_id=waiting,
            )

    async def get(self, tenant: Tenant, run_id: str) -> Run:
        """Return a run; NotFound also when it is another tenant's."""
        return await stored_run(self._store, tenant, run_id)

    def watch(self, tenant: Tenant, run_id: str, from_sequence: int) -> AsyncIterator[LoggedEvent]:
        """Yield a run's events from a sequence number on, until the run has finished."""
        return watched(self._store, self._hosting, tenant, run_id, from_sequence)

    async def cancel(self, tenant: Tenant, run_id: str) -> Run:
        """Stop a run, down to its processes; a finished run stays as it is."""
        run = await self.get(tenant, run_id)
        await self._cancelling.cancel(run)
        return run

    def abandon_all(self) -> None:
        """End all that is hosted here without a word: others may have it."""
        self._hosting.abandon_all()

    async def stop_following(self) -> None:
        """Take no run any more that nobody hosts."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def close(self) -> None:
        """Cancel every live run, or hand it over, and wait until what is to be stored is; no run starts after this.

        A run that waits is left alone: it goes on when a gateway is back.
        """
        self._hosting.closing.set()
        await self.stop_following()
        await self._hosting.close()
        await self._agent_runs.close()
