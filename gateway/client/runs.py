"""Runs in the Python client: starting them once, following them across broken connections, listing and ending them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.client.messages import enum_name, enum_number, message, record, timestamp
from gateway.client.wire import Wire
from gateway.v1 import run_service_pb2 as pb
from gateway.v1 import run_service_pb2_grpc as grpc_pb

PolicyMode = Literal["pin", "follow"]
RunStatus = Literal["running", "waiting", "completed", "stopped", "cancelled", "failed"]


@dataclass(frozen=True)
class Event:
    """One event of a run; agent/events.py lists the types and their payloads."""

    sequence: int
    type: str
    payload: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True)
class Run:
    """A run. `stop` is empty until it has finished, then {hook, rule, reason}.

    `started_by` is the credential that started it, as the audit shows it; empty where there was none.
    """

    id: str
    thread: str
    agent: str
    status: str
    stop: Mapping[str, str]
    last_sequence: int
    task: str
    started_at: datetime
    finished_at: datetime | None
    policy_mode: str = "pin"
    policy_version: str = ""
    started_by: str = ""


class RunCalls(Wire):
    """The calls of RunService. ScopeMissing where the key is not for runs; NotFound also for another tenant's."""

    @property
    def _runs(self) -> Any:
        return self._stub(grpc_pb.RunServiceStub)

    async def start_run(
        self, task: str, *, thread: str = "", agent: str = "", policy_mode: PolicyMode = "pin", request_id: str = ""
    ) -> Run:
        """Start a run; an empty thread means a new one. `follow`: a policy applied meanwhile judges its next calls.

        It is started once, however often a broken connection makes the client ask. With a `request_id` of your own you
        may ask again yourself, also from another process, and get the same run; RequestIdReused where it was given to
        another one. Raises ThreadBusy, InvalidArgument, QuotaExceeded, Overloaded, Unavailable.
        """
        started = await self._ask(
            self._runs.StartRun,
            pb.StartRunRequest,
            task=task,
            thread=thread,
            agent=agent,
            policy_mode=enum_number(pb.PolicyMode, policy_mode, "policy_mode"),
            request_id=request_id or str(uuid.uuid4()),
        )
        return _run(started.run)

    async def watch_run(self, run_id: str, from_sequence: int = 1) -> AsyncIterator[Event]:
        """Yield a run's events from a sequence number on, until it has finished; each once, and in order.

        Where the connection breaks, or the gateway is restarted, it goes on after the last event that came. Raises
        NotFound, and Unavailable when the gateway stays away.
        """
        following = from_sequence

        def request() -> pb.WatchRunRequest:
            return message(pb.WatchRunRequest, run_id=run_id, from_sequence=following)

        async for said in self._resumed(self._runs.WatchRun, request):
            event = said.event
            following = event.sequence + 1
            yield Event(event.sequence, event.type, json.loads(event.payload_json), event.at.ToDatetime(UTC))

    async def run(
        self, task: str, *, thread: str = "", agent: str = "", policy_mode: PolicyMode = "pin", request_id: str = ""
    ) -> AsyncIterator[Event]:
        """Start a run and yield its events; the last one is run_finished. Arguments and errors are as for start_run."""
        started = await self.start_run(task, thread=thread, agent=agent, policy_mode=policy_mode, request_id=request_id)
        async for event in self.watch_run(started.id):
            yield event

    async def get_run(self, run_id: str) -> Run:
        """Return a run. Raises NotFound."""
        return _run((await self._ask(self._runs.GetRun, pb.GetRunRequest, run_id=run_id)).run)

    async def list_runs(
        self,
        *,
        thread: str = "",
        statuses: Sequence[RunStatus] = (),
        agent: str = "",
        started_by: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[Run]:
        """Yield runs, the newest first, a page at a time as they are asked for; their tasks are cut.

        What is not given does not matter; several statuses mean any of them. Raises InvalidArgument.
        """
        async for one in self._listed(
            self._runs.ListRuns,
            pb.ListRunsRequest,
            "runs",
            thread=thread,
            statuses=[enum_number(pb.RunStatus, name, "statuses") for name in statuses],
            agent=agent,
            started_by=started_by,
            started_since=timestamp(since),
            started_until=timestamp(until),
        ):
            yield _run(one)

    async def cancel_run(self, run_id: str) -> Run:
        """Stop a run, down to its processes; one that has finished stays as it is. Raises NotFound."""
        return _run((await self._ask(self._runs.CancelRun, pb.CancelRunRequest, run_id=run_id)).run)


def _run(run: pb.Run) -> Run:
    return record(
        Run,
        run,
        stop={"hook": run.stop.hook, "rule": run.stop.rule, "reason": run.stop.reason} if run.HasField("stop") else {},
        status=enum_name(pb.RunStatus, run.status),
        policy_mode=enum_name(pb.PolicyMode, run.policy_mode),
    )
