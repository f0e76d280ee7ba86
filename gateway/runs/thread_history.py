"""Stores what lasts as long as the thread: its messages and its metadata.

Each step writes what it added and changed, in one transaction with the run's checkpoint, so a step's cost does not grow
with the thread. The hook is not mandatory, because subagents inherit mandatory hooks and their messages do not belong
to the thread. The gateway adds it to every run; no agent's settings can remove it.

A metadata value over a limit (key, size, number, total) is logged and not stored: the last stored value stays, and the
run continues. A tool that wrote too much must not cost the run its work.
"""

import json
from collections.abc import Collection, Mapping
from typing import Protocol

import structlog
from pydantic import JsonValue

from agent.hooks.hook import Hook
from agent.messages import Message
from agent.models.model import CHARS_PER_TOKEN, messages_tokens
from agent.state import AgentState
from gateway.storage.entities import Thread
from gateway.storage.run_writes import KeptStep
from gateway.storage.thread_store import entry_bytes

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
log = structlog.get_logger(__name__)


class Steps(Protocol):
    """Stores steps; see gateway.runs.checkpoints.Checkpoints."""

    async def keep(self, step: KeptStep, state: AgentState) -> None:
        """Store a step, and the state that the run continues from."""

    async def keep_last(self, step: KeptStep, state: AgentState) -> None:
        """Store what the last step added, together with the run's end."""


class ThreadHistoryHook(Hook):
    """Stores the thread of one run; ignores the states of other runs and of subagents."""

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
        """Store what the last step added with the run's end."""
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
