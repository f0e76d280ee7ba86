"""The state every hook takes and returns: immutable, serializable, with the step in flight apart in `current`.

Hooks speak through the methods here: proceed, block, ask (a hook that has no say in a tool call returns the state as it
is; the innermost one, the policy, says one of the three of each call, for its silence is a block), with_arguments,
with_result, with_messages, with_system_prompt, with_tools, with_response, request_continuation, forbid_continuation,
allow_stop, say, with_metadata, without_metadata, with_note. There is no other vocabulary.

What a hook must remember goes into the state, never into the hook: `metadata` lives as long as the thread, `notes` as
long as the run. A capability's keys begin with its name and a dot, as in "todos.list"; keys without a dot belong to the
agent and to services.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from pydantic import Field, InstanceOf, JsonValue

from agent.call_context import CallContext
from agent.decisions import ContinuationDecision, ContinuationOutcome, PolicyWord, Verdict, VerdictKind
from agent.frozen import FrozenDict, Json, Text, frozen_arguments, with_entry
from agent.messages import Message, ToolCall, ToolResult, ToolSpec, Usage, Value


class ModelResponse(Value):
    """One answer of a model.

    `finish_reason` is the endpoint's own word: stop, tool_calls, length, content_filter. It is "refusal" where the
    endpoint marks the text as the model's refusal, and empty where it gives none.
    """

    message: Message
    finish_reason: str
    usage: Usage = Usage()


@dataclass(frozen=True)
class ToolExecution:
    """One tool call on its way: what was asked, what the hooks made of it, and what came back.

    `approval_id` names the approval that it waits for, ran by (also by its grant), or was refused by; of one that
    blocked it `approval_outcome` says whether somebody refused (denied) or nobody answered in time (expired).
    `recalled` says that the call ran in a process that is lost. `context` is what its hooks share.
    """

    requested: ToolCall
    call: ToolCall
    verdict: Verdict | None = None
    result: ToolResult | None = None
    duration_s: float = 0.0
    approval_id: str = ""
    approval_outcome: str = ""
    recalled: bool = False
    context: CallContext = field(default_factory=CallContext, compare=False, repr=False)

    @property
    def waiting(self) -> bool:
        """Whether the call waits for an approval and did not run."""
        return self.result is not None and self.result.outcome == "waiting"

    @property
    def blocked(self) -> bool:
        """Whether a hook blocked the call."""
        return self.verdict is not None and self.verdict.kind is VerdictKind.BLOCK

    @property
    def succeeded(self) -> bool:
        """Whether the call ran and its result is no error."""
        return not self.blocked and self.result is not None and not self.result.is_error

    def with_(self, **changes: object) -> ToolExecution:
        """Return a copy with fields replaced; see CurrentExecution.with_."""
        return _with(self, changes, _ON_ITS_WAY)


@dataclass(frozen=True)
class CurrentExecution:
    """The step in flight. Cleared when the step is final and after an error; never serialized.

    `tool_index` points at the tool call that before_tool_use and after_tool_use are about. `hooks_s`, `model_s`,
    `model_wait_s` and `tools_s` say where the step's time went; hooks cannot change them.
    """

    started_at_s: float = 0.0
    completed_at_s: float | None = None
    input_messages: tuple[Message, ...] = ()
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = ()
    response: ModelResponse | None = None
    tool_executions: tuple[ToolExecution, ...] = ()
    tool_index: int | None = None
    output_messages: tuple[Message, ...] = ()
    errors: tuple[Exception, ...] = ()
    continuation: ContinuationOutcome | None = None
    hooks_s: float = 0.0
    model_s: float = 0.0
    model_wait_s: float = 0.0
    tools_s: float = 0.0

    @property
    def tool(self) -> ToolExecution:
        """The tool call in question; IndexError outside the two tool points."""
        if self.tool_index is None:
            raise IndexError("state.current.tool exists at before_tool_use and after_tool_use only")
        return self.tool_executions[self.tool_index]

    def with_tool(self, execution: ToolExecution) -> CurrentExecution:
        """Return this with the tool call in question replaced."""
        if self.tool_index is None:
            raise IndexError("state.current.tool exists at before_tool_use and after_tool_use only")
        executions = list(self.tool_executions)
        executions[self.tool_index] = execution
        return self.with_(tool_executions=tuple(executions))

    def with_(self, **changes: object) -> CurrentExecution:
        """Return a copy with fields replaced: dataclasses.replace in a third of its time, which every hook pays."""
        return _with(self, changes, _IN_FLIGHT)


_Copied = TypeVar("_Copied", ToolExecution, CurrentExecution)
_ON_ITS_WAY = frozenset(one.name for one in fields(ToolExecution))
_IN_FLIGHT = frozenset(one.name for one in fields(CurrentExecution))


def _with(value: _Copied, changes: dict[str, object], known: frozenset[str]) -> _Copied:
    if not changes.keys() <= known:
        raise TypeError(f"{type(value).__name__} has no {', '.join(sorted(changes.keys() - known))}")
    copied = object.__new__(type(value))
    copied.__dict__.update(value.__dict__, **changes)
    return copied


class Spent(Value):
    """What limits are measured by."""

    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            steps=self.steps + other.steps,
            tool_calls=self.tool_calls + other.tool_calls,
            usage=self.usage + other.usage,
        )


class AgentState(Value):
    """All there is to know of a run between two steps.

    `steps`, `tool_calls` and `usage` are the run's own; `others` is what its parent, its subagents and theirs have
    spent, and limits look at `spent`, the sum. `active_s` is the time worked, without waits between two processes or
    for an approval. `depth` is 0 but for a subagent. `started` says that execution_start has been. `pending` is the
    step of a suspended run as JSON (agent.tools.approval.PendingStep): Agent.run goes on with it. No value of a state
    can be changed in place (agent.frozen). `output` is the answer as the value that Agent(output=...) asks for, None
    until there is one; like the step in flight it is never serialized.
    """

    run_id: Text
    thread: Text
    agent: Text = "default"
    depth: int = 0
    started: bool = False
    system_prompt: Text = ""
    messages: tuple[Message, ...] = ()
    metadata: Json = Field(default_factory=FrozenDict)
    notes: Json = Field(default_factory=FrozenDict)
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    others: Spent = Spent()
    forced_continuations: int = 0
    active_s: float = 0.0
    hooks_s: float = 0.0
    model_s: float = 0.0
    model_wait_s: float = 0.0
    tools_s: float = 0.0
    stop: ContinuationOutcome | None = None
    pending: Json | None = None
    output: Any = Field(default=None, exclude=True, repr=False)
    current: InstanceOf[CurrentExecution] = Field(default_factory=CurrentExecution, exclude=True, repr=False)

    @classmethod
    def start(cls, task: str, *, thread: str = "", run_id: str = "") -> Self:
        """Return the start of a run in a new thread; ids that are not given are made up."""
        return cls(
            run_id=run_id or f"run_{uuid.uuid4().hex}",
            thread=thread or f"thread_{uuid.uuid4().hex}",
            messages=(Message(role="user", content=task),),
        )

    @property
    def answer(self) -> str:
        """What the model said last, where it has the last word; else nothing."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    @property
    def spent(self) -> Spent:
        """What limits are measured by: the run's own and what its relatives spent."""
        return Spent(steps=self.steps, tool_calls=self.tool_calls, usage=self.usage) + self.others

    def with_current(self, **changes: object) -> Self:
        """Return a copy with fields of the step in flight replaced."""
        return self.with_(current=self.current.with_(**changes))

    def cleared(self) -> Self:
        """Return a copy without a step in flight."""
        return self.with_(current=CurrentExecution())

    def next_run(self, run_id: str, task: str) -> Self:
        """Return the start of another run in this thread: its messages and metadata, and nothing of this run."""
        asked = Message(role="user", content=task)
        return type(self)(
            run_id=run_id, thread=self.thread, messages=(*self.messages, asked), metadata=dict(self.metadata)
        )

    # --- what any hook may say ---

    def with_metadata(self, key: str, value: JsonValue) -> Self:
        """Return a copy with one entry of the thread's metadata set."""
        return self.with_(metadata=with_entry(self.metadata, key, value))

    def without_metadata(self, key: str) -> Self:
        """Return a copy without an entry of the thread's metadata."""
        if key not in self.metadata:
            return self
        return self.with_(metadata=FrozenDict({name: value for name, value in self.metadata.items() if name != key}))

    def with_note(self, key: str, value: JsonValue) -> Self:
        """Return a copy with one of the run's notes set: what a hook must remember until the run ends."""
        return self.with_(notes=with_entry(self.notes, key, value))

    def say(self, *messages: Message) -> Self:
        """Append messages to the thread."""
        return self.with_(messages=(*self.messages, *messages))

    def request_continuation(self, hook: str, rule: str, reason: str) -> Self:
        """Ask for another step."""
        return self._write(ContinuationDecision.REQUEST, hook, rule, reason)

    def forbid_continuation(self, hook: str, rule: str, reason: str) -> Self:
        """Stop the run, whoever asks for another step."""
        return self._write(ContinuationDecision.FORBID, hook, rule, reason)

    def allow_stop(self, hook: str, rule: str, reason: str) -> Self:
        """Say why the run may stop here, unless another hook asks for a step."""
        return self._write(ContinuationDecision.ALLOW_STOP, hook, rule, reason)

    def _write(self, decision: ContinuationDecision, hook: str, rule: str, reason: str) -> Self:
        outcome = ContinuationOutcome(decision=decision, hook=hook, rule=rule, reason=reason)
        if self.current.continuation is not None:
            outcome = self.current.continuation.resolved_with(outcome)
        return self.with_current(continuation=outcome)

    # --- before_inference and after_inference ---

    def with_messages(self, messages: tuple[Message, ...]) -> Self:
        """Replace the messages that this step's inference sees."""
        return self.with_current(input_messages=messages)

    def with_system_prompt(self, system_prompt: str) -> Self:
        """Replace the system prompt of this step's inference."""
        return self.with_current(system_prompt=system_prompt)

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Self:
        """Replace the tools that this step's inference is shown."""
        return self.with_current(tools=tools)

    def with_response(self, response: ModelResponse) -> Self:
        """Replace the model's response."""
        return self.with_current(response=response)

    # --- before_tool_use and after_tool_use ---

    def proceed(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        """Say which rule lets the tool call in question pass."""
        return self._judge(VerdictKind.PROCEED, hook, rule, reason, policy)

    def ask(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        """Hold the tool call in question until somebody approves it."""
        return self._judge(VerdictKind.ASK, hook, rule, reason, policy)

    def block(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        """Refuse the tool call in question; the model is told the reason. Nothing takes a block back."""
        return self._judge(VerdictKind.BLOCK, hook, rule, reason, policy)

    def _judge(self, kind: VerdictKind, hook: str, rule: str, reason: str, policy: PolicyWord | None) -> Self:
        tool = self.current.tool
        verdict = Verdict(kind=kind, hook=hook, rule=rule, reason=reason, policy=policy)
        if tool.verdict is not None:
            verdict = tool.verdict.strictest(verdict)
        return self.with_(current=self.current.with_tool(tool.with_(verdict=verdict)))

    def with_arguments(self, arguments: dict[str, JsonValue]) -> Self:
        """Rewrite the arguments of the tool call in question."""
        tool = self.current.tool
        call = tool.call.with_(arguments=frozen_arguments(arguments))
        return self.with_(current=self.current.with_tool(tool.with_(call=call)))

    def with_result(self, result: ToolResult) -> Self:
        """Rewrite the result of the tool call in question."""
        return self.with_(current=self.current.with_tool(self.current.tool.with_(result=result)))
