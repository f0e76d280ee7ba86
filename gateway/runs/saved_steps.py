"""SavedSteps: a decorator around Steps that takes a snapshot of the thread's files after a step or a run.

If the policy asks for it (`sandbox.snapshots`), a step that called tools is followed by a snapshot, after the step is
stored and before the next one begins. A snapshot that fails does not fail the run: it is reported once, and the thread
cannot be forked at that step. The time that it takes counts as the run's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from agent.events import Event, EventSink
from agent.state import AgentState
from gateway.errors import AirlockError
from gateway.runs.thread_history import Steps
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import RUN, STEP, Snapshot
from gateway.tenancy.tenants import Tenant
from sandbox.errors import SandboxError, said_outside

KeepFiles = Callable[[Tenant, str, int, KeptStep, str], Awaitable[Snapshot]]
"""Takes a snapshot after a step of a run: tenant, run id, the step's number, what it adds, STEP or RUN."""

# The first snapshot of a 2 GiB workspace takes a minute.
_LIMIT_S = 120.0
log = structlog.get_logger(__name__)


class SavedSteps:
    """The Steps of one run's thread."""

    def __init__(
        self, steps: Steps, keep_files: KeepFiles, tenant: Tenant, run_id: str, events: EventSink, *, taken_up: bool
    ) -> None:
        """`taken_up`: the run was taken over, so what its earlier steps did is not known."""
        self._steps = steps
        self._keep_files = keep_files
        self._tenant = tenant
        self._run_id = run_id
        self._events = events
        self._changed = taken_up
        self._reported = False

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step, then its files."""
        await self._steps.keep(step, state)
        if state.pending is None and _calls_tools(step):
            self._changed = True
            if self._when() == "step":
                await self._save(step, state.steps, STEP)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Take the last step's snapshot, then store the step with the run's end: the next run must find both."""
        calls_tools = _calls_tools(step)
        self._changed = self._changed or calls_tools
        when = self._when()
        if (when == "step" and calls_tools) or (when == "run" and self._changed):
            await self._save(step, state.steps, STEP if when == "step" else RUN)
        await self._steps.keep_last(step, state)

    def _when(self) -> str:
        return self._tenant.policy.document.sandbox.snapshots

    async def _save(self, step: KeptStep, number: int, kind: str) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                kept = await self._keep_files(self._tenant, self._run_id, number, step, kind)
        except (AirlockError, SandboxError) as error:
            self._report(number, said_outside(error))
        except TimeoutError:
            self._report(number, f"it took more than {_LIMIT_S:g} s")
        except Exception as error:
            log.exception("the files of a step were not saved", run_id=self._run_id)
            self._report(number, f"a fault of the gateway: {type(error).__name__}")
        else:
            self._events(Event("workspace_saved", {"step": number, "snapshot_id": kept.id, "files": kept.files}))

    def _report(self, number: int, reason: str) -> None:
        log.warning("the files of a step were not saved", run_id=self._run_id, step=number, error=reason)
        if not self._reported:
            self._reported = True
            self._events(Event("workspace_not_saved", {"step": number, "reason": reason}))


def _calls_tools(step: KeptStep) -> bool:
    return any(message.role == "tool" for message in step.said)
