"""The state that a run continues from when its gateway is lost: written with the run's log, read by the next gateway.

    between two steps     the thread with all that the last step added, and the state without a step in flight
    the model answered    the same, and the step with its calls, before any of them begins (agent.tools.recovery)

The results of a step's calls are in the journal (gateway/tool_calls/journal.py) until the step is stored.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, Self

import structlog
from pydantic import BaseModel, ConfigDict, JsonValue

from agent.events import Event, EventSink
from agent.hooks.hook import Hook
from agent.messages import Attachment, Message, ToolCall
from agent.models.token_estimates import CHARS_PER_TOKEN, messages_tokens
from agent.state import AgentState
from agent.tools.recovery import EarlierCall
from gateway.errors import AirlockError
from gateway.runs.run_log import RunLog
from gateway.storage.entities import Thread
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import RUN, STEP, Snapshot
from gateway.storage.thread_store import entry_bytes
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.journal import JournalHook
from sandbox.errors import SandboxError, said_outside

KEY_LIMIT_CHARS = 512
VALUE_LIMIT_CHARS = 65_536
"""Of a value as JSON in ASCII, so characters are bytes."""
KEYS_LIMIT = 1024
METADATA_LIMIT_BYTES = 1024 * 1024
"""Of all metadata of a thread, keys and values: GetThread returns all of it."""
THREAD_LIMIT_CHARS = 32 * 1024 * 1024
"""Of a thread's messages: a run reads all of them, into this process and for the model."""

_OUTERMOST_PRIORITY = 1_000_000
# A step waits for the database as long as it takes: none begins before the previous one is stored.
_TIMEOUT_S = 86_400.0
KeepFiles = Callable[[Tenant, str, int, KeptStep, str], Awaitable[Snapshot]]
"""Takes a snapshot after a step of a run: tenant, run id, the step's number, what it adds, STEP or RUN."""
# The first snapshot of a 2 GiB workspace takes a minute.
_SNAPSHOT_LIMIT_S = 120.0
log = structlog.get_logger(__name__)


class Steps(Protocol):
    """Stores steps; see gateway.runs.checkpoints.Checkpoints."""

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step, and the state that the run continues from."""

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store what the last step added, together with the run's end."""


class ThreadHistoryHook(Hook):
    """Stores what lasts as long as the thread, its messages and metadata; ignores other runs' states and subagents'.

    Each step writes what it added and changed, in one transaction with the run's checkpoint, so a step's cost does not
    grow with the thread. The hook is not mandatory, because subagents inherit mandatory hooks and their messages do not
    belong to the thread. The gateway adds it to every run; no agent's settings can remove it.

    A metadata value over a limit (key, size, number, total) is logged and not stored: the last stored value stays, and
    the run continues. A tool that wrote too much must not cost the run its work.
    """

    name = "history"
    priority = _OUTERMOST_PRIORITY
    timeout_s = _TIMEOUT_S

    def __init__(self, steps: Steps, thread: Thread, kept: AgentState) -> None:
        """Take the run's state as the thread is stored: without the new task, or as it was suspended."""
        self._steps = steps
        self._thread = thread
        self._run_id = kept.run_id
        self._position = len(kept.messages)
        self._chars = 0
        self._messages = kept.messages
        self._metadata: Mapping[str, JsonValue] = kept.metadata
        # The texts that are stored, by key; made when something changes.
        self._stored: Mapping[str, str] | None = None

    async def before_step(self, state: AgentState) -> AgentState:
        """Store what the last step added; the first step stores the task. A thread that is too long stops the run."""
        state = await self.keep(state)
        if self._chars <= THREAD_LIMIT_CHARS or not self._is_ours(state):
            return state
        reason = f"this run added about {self._chars:,} characters to its thread, the limit is {THREAD_LIMIT_CHARS:,}"
        return state.forbid_continuation(self.name, "max_thread_chars", reason)

    async def execution_end(self, state: AgentState) -> AgentState:
        if self._is_ours(state):
            await self._steps.keep_last(self.added(state), state)
        return state

    async def keep(self, state: AgentState) -> AgentState:
        """Store what is new."""
        if not self._is_ours(state):
            return state
        step = self.added(state)
        await self._steps.keep(step, state)
        # Only now: what a failed write did not store, the next one does.
        self._position += len(step.said)
        self._chars += CHARS_PER_TOKEN * messages_tokens(step.said)
        self._messages, self._metadata = state.messages, state.metadata
        if self._stored is not None:
            self._stored = {**_without(self._stored, step.removed), **step.changed}
        return state

    def added(self, state: AgentState) -> KeptStep:
        """Return what is new in a state."""
        changed, removed = self._changes(state.metadata)
        return KeptStep(self._thread, self._position, self._said(state.messages), changed, removed)

    def _is_ours(self, state: AgentState) -> bool:
        return state.run_id == self._run_id and not state.depth

    def _said(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the new messages. Stored messages stay, even if a hook rewrote the past."""
        before = self._messages
        if not before or (len(messages) >= len(before) and messages[len(before) - 1] is before[-1]):
            return messages[len(before) :]
        known = {id(message) for message in before}
        return tuple(message for message in messages if id(message) not in known)

    def _changes(self, metadata: Mapping[str, JsonValue]) -> tuple[dict[str, str], frozenset[str]]:
        """Return the JSON texts of new and changed values, and the stored keys that are gone."""
        if metadata is self._metadata:
            return {}, frozenset()
        if self._stored is None:
            self._stored = {key: _as_json(key, value)[0] for key, value in self._metadata.items()}
        removed = frozenset(self._stored.keys() - metadata.keys())
        kept = _without(self._stored, removed)
        in_all = sum(entry_bytes(key, text) for key, text in kept.items())
        changed: dict[str, str] = {}
        for key, value in metadata.items():
            if key in self._metadata and self._metadata[key] is value:
                continue
            text, problem = _as_json(key, value)
            more = entry_bytes(key, text) - (entry_bytes(key, kept[key]) if key in kept else 0)
            if not problem and key not in kept and len(kept) >= KEYS_LIMIT:
                problem = f"a thread can have at most {KEYS_LIMIT} metadata keys"
            if not problem and more > 0 and in_all + more > METADATA_LIMIT_BYTES:
                problem = f"{METADATA_LIMIT_BYTES} bytes of metadata are kept of a thread"
            if problem:
                whose = {"tenant": self._thread.tenant, "thread": self._thread.name, "run_id": self._run_id}
                log.warning("metadata was not saved", **whose, key=key[:KEY_LIMIT_CHARS], problem=problem)
            elif kept.get(key) != text:
                kept[key] = changed[key] = text
                in_all += more
        return changed, removed


def _without(texts: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in keys}


def _as_json(key: str, value: JsonValue) -> tuple[str, str]:
    """Return the text to store, and the reason if it cannot be stored."""
    if len(key) > KEY_LIMIT_CHARS or "\0" in key:
        return "", f"a key has {KEY_LIMIT_CHARS} characters at most, and no NUL"
    text = json.dumps(value)
    if len(text) > VALUE_LIMIT_CHARS:
        return "", f"{len(text)} characters of JSON, the limit is {VALUE_LIMIT_CHARS}"
    return text, ""


class SuspendedRun(BaseModel):
    """`policy` is the reference of the policy that the run is pinned to; "" for a run that follows.

    `sequence` is the number of the last event that belongs to the state: the events after it are not logged again.
    `attachments` come with the task of a run that has not begun; later they are in the thread.
    """

    model_config = ConfigDict(frozen=True)

    state: AgentState
    policy: str = ""
    sequence: int = 0
    attachments: tuple[Attachment, ...] = ()

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

    # --- gateway.runs.checkpoints.Steps ---

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step and its state; between two steps, the results of the last step's calls are no longer needed."""
        forget = _calls_of(step) if state.pending is None else ()
        await self.log.checkpoint(self.stored(state), step, forget)

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        del state
        self.log.keep_last(step, _calls_of(step))

    # --- agent.tools.recovery.Recovery ---

    async def answered(self, state: AgentState) -> None:
        await self.history.keep(state)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the journal's entries of the calls of a step that continues."""
        return await self.journal.earlier(calls)


def _calls_of(step: KeptStep) -> Collection[str]:
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
            async with asyncio.timeout(_SNAPSHOT_LIMIT_S):
                kept = await self.keep_files(self.tenant, self.run_id, number, step, kind)
        except (AirlockError, SandboxError) as error:
            self._report(number, said_outside(error))
        except TimeoutError:
            self._report(number, f"it took more than {_SNAPSHOT_LIMIT_S:g} s")
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
