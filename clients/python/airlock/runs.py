"""Runs in the Python client: start, follow, list and cancel them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airlock.messages import Fields, record
from airlock.usage import NOTHING, Usage
from airlock.v1 import run_service_pb2 as pb
from airlock.wire import Wire

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
class ModelUse:
    """What an agent of a run used of a model; `first_token_ms` is the time to the first text of its last answer."""

    agent: str
    model: str
    usage: Usage
    first_token_ms: float | None


@dataclass(frozen=True)
class Run:
    """A run. `stop` is empty until it has finished, then {hook, rule, reason}.

    `usage` is that of all its models so far, `models` the same by agent and model, with the most requests first.

    `started_by` is the credential that started it, as the audit shows it; empty if there was none.
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
    steps: int = 0
    usage: Usage = NOTHING
    models: tuple[ModelUse, ...] = ()


class RunCalls(Wire):
    """The calls of RunService. Raises ScopeMissing if the key is not for runs; NotFound also for another tenant's."""

    async def start_run(
        self,
        task: str,
        *,
        thread: str = "",
        agent: str = "",
        policy_mode: PolicyMode = "pin",
        request_id: str = "",
        attachments: Sequence[str] = (),
    ) -> Run:
        """Start a run; an empty thread means a new one. With `follow`, policies applied later judge its next calls.

        `attachments` are paths of images and PDFs in the thread's workspace, which the model is shown with the task.
        Raises ThreadBusy, InvalidArgument, QuotaExceeded, Overloaded, Unavailable, and for an attachment
        PermissionDenied and ApprovalPending.
        """
        asked: Fields = {
            "thread": thread,
            "agent": agent,
            "policy_mode": policy_mode,
            "request_id": request_id,
            "attachments": attachments,
        }
        return _run((await self._ask(pb.StartRunRequest, task=task, **asked)).run)

    async def watch_run(self, run_id: str, from_sequence: int = 1) -> AsyncIterator[Event]:
        """Yield a run's events in order from a sequence number on, each once, until the run has finished. NotFound."""
        asked: Fields = {"run_id": run_id, "from_sequence": from_sequence}
        async for said in self._resumed(pb.WatchRunRequest, asked):
            asked["from_sequence"] = said.event.sequence + 1
            yield record(Event, said.event)

    async def run(
        self,
        task: str,
        *,
        thread: str = "",
        agent: str = "",
        policy_mode: PolicyMode = "pin",
        request_id: str = "",
        attachments: Sequence[str] = (),
    ) -> AsyncIterator[Event]:
        """Start a run and yield its events; the last one is run_finished. Arguments and errors are as for start_run."""
        started = await self.start_run(
            task, thread=thread, agent=agent, policy_mode=policy_mode, request_id=request_id, attachments=attachments
        )
        async for event in self.watch_run(started.id):
            yield event

    async def get_run(self, run_id: str) -> Run:
        """Return a run. Raises NotFound."""
        return _run((await self._ask(pb.GetRunRequest, run_id=run_id)).run)

    def list_runs(
        self,
        *,
        thread: str = "",
        statuses: Sequence[RunStatus] = (),
        agent: str = "",
        started_by: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[Run]:
        """Yield runs with cut tasks, newest first. Raises InvalidArgument.

        An empty argument matches all; several statuses mean any of them.
        """
        wanted: Fields = {"thread": thread, "statuses": statuses, "agent": agent, "started_by": started_by}
        times: Fields = {"started_since": since, "started_until": until}
        return self._listed(_run, pb.ListRunsRequest, "runs", **wanted, **times)

    async def cancel_run(self, run_id: str) -> Run:
        """Cancel a run and kill its processes; a finished run stays as it is. Raises NotFound."""
        return _run((await self._ask(pb.CancelRunRequest, run_id=run_id)).run)


def _run(run: pb.Run) -> Run:
    stop = {"hook": run.stop.hook, "rule": run.stop.rule, "reason": run.stop.reason} if run.HasField("stop") else {}
    return record(Run, run, stop=stop, usage=record(Usage, run.usage))
