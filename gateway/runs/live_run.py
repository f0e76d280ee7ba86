"""LiveRun: a run hosted here, the events that it emits, and the ends that the gateway gives runs."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import structlog
from pydantic import JsonValue

from agent.events import Event
from agent.messages import Attachment
from gateway.runs.account import Account
from gateway.runs.run_log import RunLog
from gateway.storage.entities import LoggedEvent, Run, Thread
from gateway.storage.run_writes import Claim
from gateway.storage.store import ONCE, Store
from gateway.tool_calls.journal import JournalHook

_KEPT_BY = {"step_started": "step", "step_finished": "step", "run_started": ""}
log = structlog.get_logger(__name__)


def finished(status: str, rule: str, reason: str) -> Event:
    """Return the last event of a run that the gateway ends."""
    return Event("run_finished", {"status": status, "stop": _stop(rule, reason), "answer": ""})


def cancelled() -> Event:
    """Return the last event of a cancelled run."""
    return finished("cancelled", "cancelled", "the run was cancelled")


def _stop(rule: str, reason: str) -> dict[str, JsonValue]:
    return {"hook": "gateway", "rule": rule, "reason": reason}


class EventDeduplication:
    """The logged events of a run's steps and calls after the state that it continues from, not to be logged again."""

    def __init__(self, stored: Sequence[LoggedEvent] = ()) -> None:
        self._logged = {self._key(event.type, json.loads(event.payload)) for event in stored} - {None}

    def has(self, event: Event) -> bool:
        """Return whether the log has this event; never for a subagent, which starts anew."""
        return bool(self._logged) and self._key(event.type, event.payload) in self._logged

    def _key(self, type_: str, payload: object) -> tuple[str, object] | None:
        if type_ not in ONCE or not isinstance(payload, dict) or "within" in payload:
            return None
        return type_, payload.get(_KEPT_BY.get(type_, "call_id"))


@dataclass
class LiveRun:
    """A run. `because` says why it was taken over; "" for one that was started here.

    Nothing more is written here of an `abandoned` run, which belongs or will belong to another gateway. A `handed_over`
    run may be taken by others as soon as nothing of it happens here. `attachments` come with the task of a new run.
    """

    run: Run
    thread: Thread
    log: RunLog
    account: Account
    cancelled: bool = False
    because: str = ""
    attachments: tuple[Attachment, ...] = ()
    logged: EventDeduplication = field(default_factory=EventDeduplication)
    abandoned: bool = False
    handed_over: bool = False
    journal: JournalHook | None = None
    suspending: Event | None = None
    suspended: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    ended: asyncio.Task[None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, run: Run, thread: Thread, claim: Claim, store: Store, account: Account) -> Self:
        """Return a run with its log, which continues after the last stored event."""
        live = cls(run, thread, RunLog(claim, store, last_sequence=run.last_sequence, account=account), account)
        live.log.lost = live.abandon
        return live

    @property
    def whose(self) -> dict[str, str]:
        return {"run_id": self.run.id, "tenant": self.run.tenant, "thread": self.run.thread}

    def cancel(self) -> None:
        if self.task is not None and not self.cancelled:
            self.cancelled = True
            self.task.cancel()

    def abandon(self) -> None:
        """End the run here and leave its stored state as it is."""
        if self.task is None or (self.log.complete and not self.log.abandoned):
            return  # its end is being written, if the run is still ours
        self.abandoned = True
        self.log.abandon()
        if self.journal is not None:
            self.journal.abandon()
        self.task.cancel()

    def emit(self, event: Event) -> None:
        """Log an event. A run that ends as cancelled without a request was cancelled by the gateway's stop."""
        if self.abandoned:
            return
        if self.logged.has(event):
            if event.type != "run_started":
                return
            # It was started before, and did not come to its first step.
            event = Event("run_resumed", {"step": 0, "agent": self.run.agent, "thread": self.run.thread})
        if event.type == "run_resumed":
            event = Event(event.type, {**event.payload, "because": self.because})
        elif event.type == "hook_failed":
            # Not the error's text, which may contain tenant data: the event has it.
            facts = {name: event.payload.get(name) for name in ("hook", "point", "on_failure", "timeout_s")}
            log.warning("hook failed", **self.whose, **facts, error=str(event.payload.get("error")).partition(":")[0])
        elif event.type == "run_finished":
            if event.payload.get("status") == "cancelled" and not self.cancelled:
                reason = "the gateway was stopped while the run was under way; start it again"
                event = Event(event.type, {**event.payload, "stop": _stop("gateway_stopped", reason)})
            event = Event(event.type, self.account.reported(event.payload))
            facts = {name: event.payload.get(name) for name in ("status", "stop", "spent")}
            log.info("run finished", **self.whose, **facts)
        elif event.type == "run_suspended":
            self.suspending = event  # stored together with the run's state
            return
        self.log.emit(event)
