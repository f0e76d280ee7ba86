"""Runs in the Python client: starting them once, following them across broken connections, listing and ending them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.client.wire import Wire, message
from gateway.errors import InvalidArgument
from gateway.v1 import run_service_pb2 as pb
from gateway.v1 import run_service_pb2_grpc as grpc_pb

PolicyMode = Literal["pin", "follow"]
RunStatus = Literal["running", "waiting", "completed", "stopped", "cancelled", "failed"]
_POLICY_MODES = {"pin": pb.POLICY_MODE_PIN, "follow": pb.POLICY_MODE_FOLLOW}
_PAGE = 200


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
        mode = _POLICY_MODES.get(policy_mode)
        if mode is None:
            raise InvalidArgument(f"policy_mode: {policy_mode!r} is not one of {', '.join(_POLICY_MODES)}")
        request = message(
            pb.StartRunRequest,
            task=task,
            thread=thread,
            agent=agent,
            policy_mode=mode,
            request_id=request_id or str(uuid.uuid4()),
        )
        return _run((await self._unary(self._runs.StartRun, request, safe=True)).run)

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
        request = message(pb.GetRunRequest, run_id=run_id)
        return _run((await self._unary(self._runs.GetRun, request, safe=True)).run)

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
        token = ""
        while True:
            request = message(
                pb.ListRunsRequest,
                thread=thread,
                statuses=[_status(name) for name in statuses],
                agent=agent,
                started_by=started_by,
                started_since=_timestamp(since),
                started_until=_timestamp(until),
                page_size=_PAGE,
                page_token=token,
            )
            page = await self._unary(self._runs.ListRuns, request, safe=True)
            for one in page.runs:
                yield _run(one)
            token = page.next_page_token
            if not token:
                return

    async def cancel_run(self, run_id: str) -> Run:
        """Stop a run, down to its processes; one that has finished stays as it is. Raises NotFound."""
        request = message(pb.CancelRunRequest, run_id=run_id)
        return _run((await self._unary(self._runs.CancelRun, request, safe=True)).run)


def _status(name: str) -> int:
    wanted = f"RUN_STATUS_{name.upper()}"
    known = pb.RunStatus.keys()
    if wanted not in known:
        names = ", ".join(one.removeprefix("RUN_STATUS_").lower() for one in known[1:])
        raise InvalidArgument(f"statuses: {name!r} is not one of {names}")
    return int(pb.RunStatus.Value(wanted))


def _timestamp(at: datetime | None) -> Timestamp | None:
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at.astimezone(UTC))
    return stamp


def _run(run: pb.Run) -> Run:
    stop = {"hook": run.stop.hook, "rule": run.stop.rule, "reason": run.stop.reason} if run.HasField("stop") else {}
    status = word(pb.RunStatus.Name(run.status))
    finished_at = run.finished_at.ToDatetime(UTC) if run.HasField("finished_at") else None
    started_at = run.started_at.ToDatetime(UTC)
    mode = word(pb.PolicyMode.Name(run.policy_mode))
    return Run(
        id=run.id,
        thread=run.thread,
        agent=run.agent,
        status=status,
        stop=stop,
        last_sequence=run.last_sequence,
        task=run.task,
        started_at=started_at,
        finished_at=finished_at,
        policy_mode=mode,
        policy_version=run.policy_version,
        started_by=run.started_by,
    )


def word(enum_name: str) -> str:
    """Return the last word of an enum value's name in lower case: VERDICT_DENY is deny."""
    return enum_name.rpartition("_")[2].lower()
