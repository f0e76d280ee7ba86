"""The state that a run continues from when its gateway is lost: written with the run's log, read by the next gateway.

    between two steps     the thread with all that the last step added, and the state without a step in flight
    the model answered    the same, and the step with its calls, before any of them begins (agent.tools.recovery)

The results of a step's calls are in the journal (gateway/tool_calls/journal.py) until the step is stored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Self

import structlog
from pydantic import BaseModel, ConfigDict

from agent.events import Event, EventSink
from agent.messages import ToolCall
from agent.state import AgentState
from agent.tools.recovery import EarlierCall
from gateway.errors import AirlockError
from gateway.runs.run_log import RunLog
from gateway.runs.thread_history import Steps, ThreadHistoryHook
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import RUN, STEP, Snapshot
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.journal import JournalHook
from sandbox.errors import SandboxError, said_outside

KeepFiles = Callable[[Tenant, str, int, KeptStep, str], Awaitable[Snapshot]]
"""Takes a snapshot after a step of a run: tenant, run id, the step's number, what it adds, STEP or RUN."""
# The first snapshot of a 2 GiB workspace takes a minute.
_LIMIT_S = 120.0
log = structlog.get_logger(__name__)


class SuspendedRun(BaseModel):
    """`policy` is the reference of the policy that the run is pinned to; "" for a run that follows.

    `sequence` is the number of the last event that belongs to the state: the events after it are not logged again.
    """

    model_config = ConfigDict(frozen=True)

    state: AgentState
    policy: str = ""
    sequence: int = 0

    @classmethod
    def of(cls, state: AgentState, policy: str, sequence: int = 0) -> Self:
        """Return what to store: messages and metadata are stored with the thread, and may be long."""
        return cls(state=state.cleared().with_(messages=(), metadata={}), policy=policy, sequence=sequence)


@dataclass
class Checkpoints:
    """The Recovery of one run, and the Steps of its thread.

    `policy` is what the run is pinned to, `taken_up` the checkpoint that it was taken over at.
    """

    log: RunLog
    journal: JournalHook
    policy: str
    taken_up: SuspendedRun | None = None
    history: ThreadHistoryHook = field(init=False)

    def stored(self, state: AgentState, more: int = 0) -> str:
        """Return the text of a state to store, with the number of the last event, plus `more`."""
        sequence, was = self.log.sequence + more, self.taken_up
        if was is not None and (state.steps, state.pending) == (was.state.steps, None) and was.state.pending is None:
            # The state that it was taken over at: an earlier gateway may have logged some of what follows.
            sequence = was.sequence
        return SuspendedRun.of(state, self.policy, sequence).model_dump_json()

    # --- gateway.runs.thread_history.Steps ---

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step and its state; between two steps, the results of the last step's calls are no longer needed."""
        forget = _calls_of(step) if state.pending is None else ()
        await self.log.checkpoint(self.stored(state), step, forget)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store the last step with the run's end."""
        del state
        self.log.keep_last(step, _calls_of(step))

    # --- agent.tools.recovery.Recovery ---

    async def answered(self, state: AgentState) -> None:
        """Store the step with the model's answer."""
        await self.history.keep(state)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the journal's entries of the calls of a step that continues."""
        return await self.journal.hosted.earlier(calls)


def _calls_of(step: KeptStep) -> Collection[str]:
    """Return the ids of the calls that a step has the results of."""
    return [message.tool_call_id for message in step.said if message.tool_call_id is not None]


@dataclass
class SavedSteps:
    """The Steps of one run's thread, with a snapshot of its files after a step or the run if the policy asks for it.

    A step that called tools is followed by its snapshot before the next one begins. A snapshot that fails does not fail
    the run: it is reported once, and the thread cannot be forked at that step. Its time counts as the run's. What the
    earlier steps of a run did that was `taken_up` is not known.
    """

    steps: Steps
    keep_files: KeepFiles
    tenant: Tenant
    run_id: str
    events: EventSink
    _: KW_ONLY
    taken_up: bool
    _reported: bool = field(init=False, default=False)

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step, then its files."""
        await self.steps.keep(step, state)
        if state.pending is None and _calls_tools(step):
            self.taken_up = True
            if self._when() == "step":
                await self._save(step, state.steps, STEP)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Take the last step's snapshot, then store the step with the run's end: the next run must find both."""
        calls_tools = _calls_tools(step)
        self.taken_up = self.taken_up or calls_tools
        when = self._when()
        if (when == "step" and calls_tools) or (when == "run" and self.taken_up):
            await self._save(step, state.steps, STEP if when == "step" else RUN)
        await self.steps.keep_last(step, state)

    def _when(self) -> str:
        return self.tenant.policy.document.sandbox.snapshots

    async def _save(self, step: KeptStep, number: int, kind: str) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                kept = await self.keep_files(self.tenant, self.run_id, number, step, kind)
        except (AirlockError, SandboxError) as error:
            self._report(number, said_outside(error))
        except TimeoutError:
            self._report(number, f"it took more than {_LIMIT_S:g} s")
        except Exception as error:
            log.exception("the files of a step were not saved", run_id=self.run_id)
            self._report(number, f"a fault of the gateway: {type(error).__name__}")
        else:
            self.events(Event("workspace_saved", {"step": number, "snapshot_id": kept.id, "files": kept.files}))

    def _report(self, number: int, reason: str) -> None:
        log.warning("the files of a step were not saved", run_id=self.run_id, step=number, error=reason)
        if not self._reported:
            self._reported = True
            self.events(Event("workspace_not_saved", {"step": number, "reason": reason}))


def _calls_tools(step: KeptStep) -> bool:
    return any(message.role == "tool" for message in step.said)
