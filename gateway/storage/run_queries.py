"""The queries of one run and of its events. Each names the tenant it serves, or a run that the caller has checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, String, bindparam, insert, select, update

from gateway.credentials.caller import actor, caller_shown
from gateway.storage.entities import LoggedEvent, Run, Thread
from gateway.storage.interrupted_calls import interrupt_calls
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries
from gateway.storage.run_audit import run_changed, run_started
from gateway.storage.run_writes import Claim, RunWrite, write_run
from gateway.storage.slices import slice_of
from gateway.storage.tables import events, runs, threads, tool_calls

# A page of events ends after this many characters, whatever the number of events.
_EVENTS_PAGE_CHARS = 256 * 1024
ONCE = ("run_started", "step_started", "step_finished", "tool_call_started", "hook_verdict", "tool_call_finished")
"""Events that are told once of a run, a step or a call."""

_ASKED_TO_CANCEL = Prepared(
    select(runs.c.id).where(
        runs.c.status == "running", runs.c.gateway == bindparam("own", type_=String), runs.c.cancel_us.is_not(None)
    )
)


class RunQueries(Queries):
    """Runs and their events."""

    async def add_run(
        self,
        thread: Thread,
        *,
        agent: str,
        task: str,
        policy_version: str,
        policy_mode: str = "pin",
        run_id: str = "",
        request: tuple[str, str] | None = None,
        checkpoint: str | None = None,
        hosted: bool = True,
    ) -> Run:
        """Store a run that starts now; it is given an id unless it has one. `checkpoint` is the state it starts from.

        `request` is its request id, with the digest of the request; ConstraintViolated where another run has the id.
        One that is not `hosted` here is anybody's to take.
        """
        run = Run(
            id=run_id or self._ids("run"),
            tenant=thread.tenant,
            thread=thread.name,
            agent=agent,
            task=task,
            policy_version=policy_version,
            status="running",
            stop_hook=None,
            stop_rule=None,
            stop_reason=None,
            last_sequence=0,
            started_us=self._clock(),
            finished_us=None,
            policy_mode=policy_mode,
            started_by=caller_shown(),
        )
        row = {
            "id": run.id,
            "tenant": run.tenant,
            "thread_id": thread.id,
            "agent": agent,
            "task": task,
            "policy_version": policy_version,
            "status": run.status,
            "last_sequence": 0,
            "started_us": run.started_us,
            "policy_mode": policy_mode,
            "gateway": self._gateway if hosted else None,
            "checkpoint": checkpoint,
            "started_by": run.started_by,
            "request_id": request[0] if request else None,
            "request_digest": request[1] if request else None,
        }
        begun = run_started(
            run.id,
            tenant=run.tenant,
            thread=run.thread,
            agent=agent,
            policy_version=policy_version,
            policy_mode=policy_mode,
        )

        def work(connection: Connection) -> None:
            connection.execute(insert(runs), row)
            self.audit.append(connection, entries=[begun])

        await self._database.transact(work)
        return run

    async def run(self, tenant: str, run_id: str) -> Run | None:
        """Return a run of a tenant."""
        query = (
            select(runs, threads.c.name.label("thread"))
            .join(threads, runs.c.thread_id == threads.c.id)
            .where(runs.c.id == run_id, runs.c.tenant == tenant)
        )
        found = await self._database.rows(query)
        return Run(**{name: getattr(found[0], name) for name in Run.__dataclass_fields__}) if found else None

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        """Write what a run has come to, all of it or none; LeaseLost when another gateway has the run."""

        def work(connection: Connection) -> None:
            if write_run(connection, claim, write, self._clock) and write.finished is not None:
                # A run that is over has nothing under way: what a gateway that is lost had begun is told as that.
                left = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")
                interrupt_calls(connection, self.audit, left, self._clock())
                self.audit.append(connection, entries=run_changed(connection, "run_finished", claim.run_id))

        await self._database.transact(work, apart=False)

    async def events_of(self, run_id: str, from_sequence: int, limit: int) -> Sequence[LoggedEvent]:
        """Return a run's events from a sequence number on: `limit` of them, or fewer, but one, when they are large.

        The caller has checked whose run it is.
        """
        query = (
            select(events.c.sequence, events.c.type, events.c.at_us, events.c.payload)
            .where(events.c.run_id == run_id, events.c.sequence >= from_sequence)
            .order_by(events.c.sequence)
            .limit(limit)
        )
        take = partial(slice_of, parse=_logged_event, limit_chars=_EVENTS_PAGE_CHARS)
        page, _ = await self._database.read(query, take)
        return page

    async def told_since(self, run_id: str, sequence: int) -> Sequence[LoggedEvent]:
        """Return the events of steps and calls past a sequence number: what must not be told a second time."""
        query = (
            select(events.c.sequence, events.c.type, events.c.at_us, events.c.payload)
            .where(events.c.run_id == run_id, events.c.sequence > sequence, events.c.type.in_(ONCE))
            .order_by(events.c.sequence)
        )
        return [_logged_event(row) for row in await self._database.rows(query)]

    async def ask_to_cancel(self, run_id: str) -> None:
        """Ask whoever hosts a run, or takes it, to end it."""
        under_way = (runs.c.id == run_id) & runs.c.status.in_(("running", "waiting")) & runs.c.cancel_us.is_(None)
        by = actor()

        def work(connection: Connection) -> None:
            if connection.execute(update(runs).where(under_way).values(cancel_us=self._clock())).rowcount:
                self.audit.append(connection, entries=run_changed(connection, "run_cancelled", run_id, by=by))

        await self._database.transact(work)

    async def asked_to_cancel(self) -> Sequence[str]:
        """Return the runs of this gateway whose end somebody asked for."""
        return [row.id for row in await self._database.look(_ASKED_TO_CANCEL, {"own": self._gateway})]

    async def hand_over(self, claim: Claim) -> None:
        """Let go of a run that this process hosts, for whoever takes it."""
        ours = (runs.c.id == claim.run_id) & (runs.c.epoch == claim.epoch) & (runs.c.status == "running")
        await self._database.write((update(runs).where(ours).values(gateway=None, epoch=claim.epoch + 1), None))

    async def under_way(self, thread: Thread) -> str | None:
        """Return the run that is under way in a thread, on whichever gateway."""
        query = select(runs.c.id).where(runs.c.thread_id == thread.id, runs.c.status.in_(("running", "waiting")))
        found = await self._database.rows(query)
        return found[0].id if found else None


def _logged_event(row: Row[Any]) -> LoggedEvent:
    return LoggedEvent(row.sequence, row.type, row.at_us, row.payload)
