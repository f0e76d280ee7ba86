"""LiveRun: a run hosted here, and the events that it emits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from agent.events import Event
from gateway.runs.endings import GATEWAY_STOPPED
from gateway.runs.event_deduplication import EventDeduplication
from gateway.runs.run_log import RunLog
from gateway.storage.entities import Run, Thread
from gateway.tool_calls.journal import JournalHook

log = structlog.get_logger(__name__)


@dataclass
class LiveRun:
    """A run. `because` says why it was taken over; "" for one that was started here.

    Nothing more is written here of an `abandoned` run, which belongs or will belong to another gateway. A `handed_over`
    run may be taken by others as soon as nothing of it happens here.
    """

    run: Run
    thread: Thread
    log: RunLog
    cancelled: bool = False
    because: str = ""
    logged: EventDeduplication = field(default_factory=EventDeduplication)
    abandoned: bool = False
    handed_over: bool = False
    journal: JournalHook | None = None
    suspending: Event | None = None
    suspended: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    ended: asyncio.Task[None] | None = field(default=None, repr=False)

    def cancel(self) -> None:
        """Stop the run on request."""
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
            self.journal.hosted.abandon()
        self.task.cancel()

    def emit(self, event: Event) -> None:
        """Log an event. A run that ends as cancelled without a request was cancelled by the gateway's stop."""
        if self.abandoned or self.logged.has(event):
            if event.type != "run_started" or self.abandoned:
                return
            # It was started before, and did not come to its first step.
            event = Event("run_resumed", {"step": 0, "agent": self.run.agent, "thread": self.run.thread})
        if event.type == "run_resumed":
            event = Event(event.type, {**event.payload, "because": self.because})
        elif event.type == "hook_failed":
            # Not the error's text, which may contain tenant data: the event has it.
            facts = {name: event.payload.get(name) for name in ("hook", "point", "on_failure", "timeout_s")}
            kind = str(event.payload.get("error")).partition(":")[0]
            log.warning("hook failed", **self._whose(), **facts, error=kind)
        elif event.type == "run_finished":
            if event.payload.get("status") == "cancelled" and not self.cancelled:
                event = Event(event.type, {**event.payload, "stop": GATEWAY_STOPPED})
            facts = {name: event.payload.get(name) for name in ("status", "stop", "spent")}
            log.info("run finished", **self._whose(), **facts)
        elif event.type == "run_suspended":
            self.suspending = event  # stored together with the run's state
            return
        self.log.emit(event)

    def _whose(self) -> dict[str, str]:
        return {"run_id": self.run.id, "tenant": self.run.tenant, "thread": self.run.thread}
