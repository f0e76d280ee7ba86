"""Events of a run, in one order. Each has a type and a JSON payload; event.typed() returns a class of this module.

A sink must not block. Each step and each call has each of its events once, even if another process resumes the run
(agent.tools.recovery). Only pieces of text may repeat, and then differ: model_finished has the answer that counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, dataclass_transform

from pydantic import JsonValue, TypeAdapter

from agent.filesystem import OutputStream
from agent.messages import Attachment, Evicted, Usage
from agent.state import TIMES, AgentState, CurrentExecution, Spent

RunStatus = Literal["completed", "stopped", "cancelled", "failed"]


@dataclass(frozen=True)
class Event:
    """An event as it is stored and streamed."""

    type: str
    payload: dict[str, JsonValue]

    def typed(self) -> RunEvent:
        """Return the event as its class. Raises ValueError for an unknown type or an invalid payload."""
        return _adapter(self.type).validate_python(self.payload)


EventSink = Callable[[Event], None]

_log = logging.getLogger(__name__)


def discard(event: Event) -> None:
    """A sink that drops every event."""


def emit(sink: EventSink, type_: str, **payload: JsonValue) -> None:
    """Pass an event to the sink. What the sink raises is logged and does not break the run."""
    try:
        if sink is not discard:
            sink(Event(type_, payload))
    except Exception:
        _log.exception("the event sink failed on %s", type_)


def times(of: AgentState | CurrentExecution) -> dict[str, JsonValue]:
    """Return where the time of a run or a step went, as events report it."""
    return {f"{name.removesuffix('_s')}_ms": round(getattr(of, name) * 1000, 3) for name in TIMES}


# --- the classes: RunStarted is the type run_started ---


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _Payload:
    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class RunEvent(_Payload):
    """Base class of events. `within` is set in a subagent: the id of the spawn_subagent call that started it."""

    within: str = ""


class Stop(_Payload):
    """What stopped a run: which rule of which hook, and why."""

    hook: str
    rule: str
    reason: str


class RunStarted(RunEvent):
    """A run has begun."""

    task: str
    agent: str
    thread: str


class RunResumed(RunEvent):
    """A run goes on from a stored state. A gateway sets `because`: approval, gateway_lost or gateway_stopped."""

    step: int
    agent: str
    thread: str
    because: str = ""


class SoughtApproval(_Payload):
    """A call that waits for an approval, and which rule asks for one."""

    approval_id: str
    call_id: str
    name: str
    rule: str
    reason: str


class RunSuspended(RunEvent):
    """A run waits for approvals. run_resumed comes next, then tool_call_started and hook_verdict of the step again."""

    step: int
    approvals: tuple[SoughtApproval, ...]


class StepStarted(RunEvent):
    """A step has begun."""

    step: int


class ModelWaiting(RunEvent):
    """A request to the model waits for its turn: other requests are under way."""

    step: int
    reason: str


class ModelDelta(RunEvent):
    """A piece of the model's text; small pieces are joined."""

    text: str


class ReasoningDelta(RunEvent):
    """A piece of the model's reasoning, where the endpoint shows it; small pieces are joined.

    A gateway emits it only for models with the setting store_reasoning.
    """

    text: str


class RequestedCall(_Payload):
    """A tool call as the model wrote it; `arguments` is null where that was no JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None


class ModelFinished(RunEvent):
    """The model has answered. `reasoning_chars` is the length of the reasoning that its endpoint showed.

    `model` is the one that answered. `first_token_ms` is the time from sending the request to the first piece of text
    or reasoning; it is null if nothing arrived before the end.
    """

    step: int
    text: str
    tool_calls: tuple[RequestedCall, ...]
    finish_reason: str
    reasoning_chars: int = 0
    usage: Usage
    duration_ms: float
    model: str = ""
    first_token_ms: float | None = None


class ModelFailed(RunEvent):
    """An attempt to ask `model` failed; `usage` is what it is charged.

    `next_model` is the fallback that is asked next; it is empty if there is none.
    """

    step: int
    error: str
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    next_model: str = ""


class ModelRetrying(RunEvent):
    """The model is asked again after `wait_s`, in the same step. This is attempt `attempt` of at most `attempts`."""

    step: int
    attempt: int
    attempts: int
    wait_s: float


class ToolCallStarted(RunEvent):
    """A tool call is judged next."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None


class WouldBe(_Payload):
    """What rules in shadow would have made of a call."""

    verdict: Literal["allow", "ask", "deny"]
    rule: str


class HookVerdict(RunEvent):
    """The verdict on a call. `arguments` are the final ones where hooks rewrote them, else null."""

    call_id: str
    verdict: Literal["allow", "ask", "deny"]
    hook: str
    rule: str
    reason: str
    policy_version: str
    would_be: WouldBe | None
    arguments: dict[str, Any] | None


class ToolOutput(RunEvent):
    """A piece of a running program's output; small pieces are joined."""

    call_id: str
    stream: OutputStream
    text: str


class ConnectionEnded(RunEvent):
    """A network connection that programs of a call made has ended or was refused. Only gateways emit it.

    `method` is that of an HTTP request that was judged, "" for a raw connection. Programs sent `bytes_up` and received
    `bytes_down`. `over_limit_before` is how many refusals before this one were left out because there were too many.
    """

    call_id: str
    host: str
    port: int
    method: str
    verdict: Literal["allow", "deny"]
    rule: str
    reason: str
    policy_version: str
    outcome: str
    bytes_up: int
    bytes_down: int
    credential: str
    duration_ms: float
    over_limit_before: int


class ToolCallFinished(RunEvent):
    """A tool call has ended, or was blocked.

    `withheld_by` is the rule that kept the result back, `would_be_withheld_by` one in shadow that would have.
    `duration_ms` is the time of the execution alone, 0 for a blocked call. `evicted` says where a long result is kept,
    `attachments` which files the model is shown with the result.
    """

    call_id: str
    name: str
    verdict: Literal["allow", "ask", "deny", ""]
    rule: str
    reason: str
    policy_version: str
    would_be: WouldBe | None
    approval_id: str
    outcome: str
    exit_code: int | None
    is_error: bool
    withheld_by: str
    would_be_withheld_by: str
    content: str
    note: str
    evicted: Evicted | None
    attachments: Sequence[Attachment] = ()
    duration_ms: float


class HookFailed(RunEvent):
    """A hook raised, took too long or returned something else than a state."""

    hook: str
    point: str
    on_failure: Literal["closed", "open"]
    timeout_s: float
    error: str


class StateChanged(RunEvent):
    """A hook changed what lasts as long as the thread.

    `metadata` has the new values, `large` the keys of those that are too long to show, `removed` the keys that are
    gone. `messages` is how many the thread has now, null where they are the same.
    """

    hook: str
    point: str
    metadata: dict[str, Any]
    large: tuple[str, ...]
    removed: tuple[str, ...]
    messages: int | None


class StepFinished(RunEvent):
    """A step has ended. `model_wait_ms`, the wait for the model's turn, is not part of `model_ms`."""

    step: int
    hooks_ms: float
    model_ms: float
    model_wait_ms: float
    tools_ms: float


class WorkspaceSaved(RunEvent):
    """A gateway has saved the files of a step, where the policy asks for that."""

    step: int
    snapshot_id: str
    files: int


class WorkspaceNotSaved(RunEvent):
    """The files of a step could not be saved: the run cannot be forked there. Once in a run."""

    step: int
    reason: str


class ModelUse(_Payload):
    """What an agent used of a model. `requests` includes failed and lost ones; `first_token_ms` is the last one."""

    agent: str
    model: str
    requests: int
    usage: Usage
    first_token_ms: float | None


class RunFinished(RunEvent):
    """The last event of a run. `usage` is that of the run's own agent.

    `spent`, which limits use, and `models`, which a gateway sets, include the run's subagents.
    """

    status: RunStatus
    stop: Stop
    answer: str
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    hooks_ms: float = 0.0
    model_ms: float = 0.0
    model_wait_ms: float = 0.0
    tools_ms: float = 0.0
    spent: Spent = field(default_factory=Spent)
    models: tuple[ModelUse, ...] = ()


class SubagentStarted(RunStarted):
    """A subagent has begun."""


class SubagentFinished(RunFinished):
    """A subagent has ended."""


@cache
def event_types() -> dict[str, type[RunEvent]]:
    """Return the class of each event type."""
    classes = [*RunEvent.__subclasses__(), SubagentStarted, SubagentFinished]
    return {re.sub(r"\B([A-Z])", r"_\1", kind.__name__).lower(): kind for kind in classes}


@cache
def _adapter(type_: str) -> TypeAdapter[RunEvent]:
    if (kind := event_types().get(type_)) is None:
        raise ValueError(f"there is no event type {type_!r}")
    return TypeAdapter(kind)


# --- pieces of text, joined into fewer and larger events ---

PIECES = frozenset({"model_delta", "reasoning_delta", "tool_output"})
"""Events that may be joined, or dropped when too many wait: model_finished and tool_call_finished repeat the text.

Nothing repeats a reasoning_delta, and nothing depends on it.
"""


def merged(earlier: Event, later: Event) -> Event | None:
    """Return two adjacent events as one; None if they are not pieces of one text, or together too long."""
    if later.type not in PIECES or earlier.type != later.type:
        return None
    same = {**earlier.payload, "text": ""} == {**later.payload, "text": ""}
    joined = f"{earlier.payload['text']}{later.payload['text']}"
    return Event(earlier.type, {**earlier.payload, "text": joined}) if same and len(joined) <= 16_384 else None
