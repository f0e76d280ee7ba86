"""LiveRun: a run that is hosted here, and what it tells of itself."""

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
    """A run; `because` says why it came here, and is empty for one that was started here.

    `abandoned` is one that is another gateway's, or is to become it: nothing more is written of it here. `handed_over`
    is one that others may take as soon as nothing of it happens here.
    """

    run: Run
    thread: Thread
    log: RunLog
    cancelled: bool = False
    because: str = ""
    told: EventDeduplication = field(default_factory=EventDeduplication)
    abandoned: bool = False
    handed_over: bool = False
    journal: JournalHook | None = None
    suspending: Event | None = None
    suspended: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    ended: asyncio.Task[None] | None = field(default=None, repr=False)

    def cancel(self) -> None:
        """Stop it, for somebody asked for its end."""
        if self.task is not None and not self.cancelled:
            self.cancelled = True
            self.task.cancel()

    def abandon(self) -> None:
        """End it here, and leave all that is written of it as it is."""
        if self.task is None or (self.log.complete and not self.log.abandoned):
            return  # its end is being written, if it is ours still
        self.abandoned = True
        self.log.abandon()
        if self.journal is not None:
            self.journal.hosted.abandon()
        self.task.cancel()

    def tell(self, event: Event) -> None:
        """Take an event of it; one that nobody asked to cancel was cancelled by the gateway's end."""
        if self.abandoned or self.told.has(event):
            if event.type != "run_started" or self.abandoned:
                return
            # It has begun once already, and not come to its first step.
            event = Event("run_resumed", {"step": 0, "agent": self.run.agent, "thread": self.run.thread})
        if event.type == "run_resumed":
            event = Event(event.type, {**event.payload, "because": self.because})
        elif event.type == "hook_failed":
            # Not the error's text, which may hold what a tenant wrote: the event has it.
            told = {name: event.payload.get(name) for name in ("hook", "point", "on_failure", "timeout_s")}
            log.warning("hook failed", **self._whose(), **told, error=str(event.payload.get("error")).partition(":")[0])
        elif event.type == "run_finished":
            if event.payload.get("status") == "cancelled" and not self.cancelled:
                event = Event(event.type, {**event.payload, "stop": GATEWAY_STOPPED})
            told = {name: event.payload.get(name) for name in ("status", "stop", "spent")}
            log.info("run finished", **self._whose(), **told)
        elif event.type == "run_suspended":
            self.suspending = event  # stored with the run's state, when that is known
            return
        self.log.emit(event)

    def _whose(self) -> dict[str, str]:
        return {"run_id": self.run.id, "tenant": self.run.tenant, "thread": self.run.thread}
