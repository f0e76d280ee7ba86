"""The state that every hook takes and returns: immutable and serializable, with the step in progress in `current`.

Hooks act through its methods. A hook without an opinion on a tool call returns the state unchanged; only the innermost
one, the policy, must give a verdict on each call, or the call is blocked.

Block beats ask, ask beats proceed. Forbid beats request, request beats allow. Of equal decisions the first one stands,
with its reason.

What a hook must remember goes into the state: `metadata` lives as long as the thread, `notes` as long as the run. Keys
of a capability begin with its name and a dot; keys without a dot belong to the agent and to services.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Self, cast

from pydantic import Field, InstanceOf, JsonValue
from typing_extensions import TypeVar

from agent.frozen import FrozenDict, Json, Text, frozen_arguments, with_entry
from agent.messages import Amounts, Attachment, Message, ToolCall, ToolResult, ToolSpec, Usage, Value
from agent.tool_call import CallContext, Copied, JudgedCall

Output = TypeVar("Output", default=Any)
"""The type of an agent's output: the pydantic model of Agent(output=...), Any for other agents."""

TIMES = ("hooks_s", "model_s", "model_wait_s", "tools_s")
"""The fields that say where the time of a step or a run went."""


class VerdictKind(IntEnum):
    """Ordered by strictness."""

    PROCEED = 0
    ASK = 1
    BLOCK = 2

    @property
    def public_name(self) -> str:
        """The word that events, audit records and clients use: allow, ask or deny."""
        return ("allow", "ask", "deny")[self]


class PolicyWord(Value):
    """What a policy reports besides its verdict.

    `asked` are the parts of the call that an approver is asked about. `would_be` is the verdict of the rules in shadow
    mode where it differs. `approval_id` names the approval whose grant allowed the call.
    """

    version: str
    asked: tuple[str, ...] = ()
    would_be: str = ""
    would_be_rule: str = ""
    approval_id: str = ""


class Verdict(Value):
    """A hook's verdict on a tool call; `policy` is what the policy reported, whichever hook was the strictest."""

    kind: VerdictKind
    hook: Text
    rule: Text
    reason: Text
    policy: PolicyWord | None = None

    def strictest(self, other: Verdict) -> Verdict:
        """Return the stricter of two verdicts, this earlier one when they are equal."""
        winner, loser = (other, self) if other.kind > self.kind else (self, other)
        return winner if winner.policy is not None or loser.policy is None else winner.with_(policy=loser.policy)

    @property
    def policy_version(self) -> str:
        """The version of the policy that judged the call; empty if none did."""
        return self.policy.version if self.policy is not None else ""


class ContinuationDecision(IntEnum):
    """Ordered by precedence."""

    ALLOW_STOP = 0
    REQUEST = 1
    FORBID = 2


class ContinuationOutcome(Value):
    """A hook's decision about another step, with the rule and the reason."""

    decision: ContinuationDecision
    hook: Text
    rule: Text
    reason: Text

    def resolved_with(self, later: ContinuationOutcome) -> ContinuationOutcome:
        return later if later.decision > self.decision else self


class ModelResponse(Value):
    """One answer of a model.

    `finish_reason` is the endpoint's term: stop, tool_calls, length, content_filter; "refusal" if the endpoint marks
    the text as the model's refusal, empty if it gives none. `model` names the model that answered.
    """

    message: Message
    finish_reason: str
    usage: Usage = Usage()
    model: str = ""


@dataclass(frozen=True)
class ToolExecution(Copied):
    """The progress of one tool call: what was requested, what the hooks made of it, and the result.

    Hooks may rewrite `call` at before_tool_use, and `judged` follows it. `approval_id` names the approval that the call
    waits for, was allowed by (also through its grant) or was refused by; for a refusal, `approval_outcome` is denied or
    expired. `recalled`: the call ran in a process that was lost. The call's hooks share `context`.
    """

    requested: ToolCall
    call: ToolCall
    judged: JudgedCall
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
        return self.verdict is not None and self.verdict.kind is VerdictKind.BLOCK

    @property
    def succeeded(self) -> bool:
        """Whether the call ran and its result is not an error."""
        return not self.blocked and self.result is not None and not self.result.is_error


@dataclass(frozen=True)
class CurrentExecution(Copied):
    """The step in progress. Cleared when the step ends and after an error; never serialized.

    `tool_index` is the index of the tool call that before_tool_use and after_tool_use are called for. Hooks cannot
    change the TIMES.
    """

    started_at_s: float = 0.0
    completed_at_s: float | None = None
    input_messages: tuple[Message, ...] = ()
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, JsonValue] | None = None
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
    def final_answer(self) -> ModelResponse | None:
        """The response if it is an answer: if it calls no tool."""
        return None if self.response is None or self.response.message.tool_calls else self.response

    @property
    def tool(self) -> ToolExecution:
        """The current tool call. Raises IndexError outside the two tool points."""
        return self.tool_executions[self._index()]

    def with_tool(self, execution: ToolExecution) -> CurrentExecution:
        """Return a copy with the current tool call replaced."""
        executions = list(self.tool_executions)
        executions[self._index()] = execution
        return self.with_(tool_executions=tuple(executions))

    def _index(self) -> int:
        if self.tool_index is None:
            raise IndexError("state.current.tool exists at before_tool_use and after_tool_use only")
        return self.tool_index


_NO_STEP = CurrentExecution()


class Spent(Amounts):
    """What limits count."""

    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()


class AgentState(Value, Generic[Output]):  # large: one method per change that a hook may make
    """A run between two steps, complete: a store needs nothing else to resume it.

    `steps`, `tool_calls` and `usage` are the run's own; `others` is what the rest of its family spent, and limits check
    `spent`, the sum. `active_s` is the time worked, without waits. `depth` is 0 except in a subagent. `pending` is the
    suspended step as JSON (agent.tools.approval.PendingStep), which Agent.run resumes. `output` is the answer as
    Agent(output=...) types it; like `current` it is never serialized.
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
    output: Output = Field(default=cast(Any, None), exclude=True, repr=False)
    current: InstanceOf[CurrentExecution] = Field(default=_NO_STEP, exclude=True, repr=False)

    @classmethod
    def start(cls, task: str, *, thread: str = "", run_id: str = "", attachments: tuple[Attachment, ...] = ()) -> Self:
        """Return the start of a run in a new thread; missing ids are generated."""
        return cls(
            run_id=run_id or f"run_{uuid.uuid4().hex}",
            thread=thread or f"thread_{uuid.uuid4().hex}",
            messages=(Message(role="user", content=task, attachments=attachments),),
        )

    @property
    def answer(self) -> str:
        """The text of the last message if it is the model's, else empty."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    @property
    def spent(self) -> Spent:
        """What limits count: the run's own and what its relatives spent."""
        return Spent(steps=self.steps, tool_calls=self.tool_calls, usage=self.usage) + self.others

    def with_current(self, **changes: object) -> Self:
        return self.with_(current=self.current.with_(**changes))

    def cleared(self) -> Self:
        return self.with_(current=_NO_STEP)

    def next_run(self, run_id: str, task: str, attachments: tuple[Attachment, ...] = ()) -> Self:
        """Return the start of another run in this thread: its messages and metadata, and nothing of this run."""
        messages = (*self.messages, Message(role="user", content=task, attachments=attachments))
        return type(self)(run_id=run_id, thread=self.thread, messages=messages, metadata=dict(self.metadata))

    # --- at any point ---

    def with_metadata(self, key: str, value: JsonValue) -> Self:
        return self.with_(metadata=with_entry(self.metadata, key, value))

    def without_metadata(self, key: str) -> Self:
        if key not in self.metadata:
            return self
        return self.with_(metadata=FrozenDict({name: value for name, value in self.metadata.items() if name != key}))

    def count(self, key: str) -> int:
        """Return a note that counts something, 0 if there is none."""
        noted = self.notes.get(key)
        return noted if isinstance(noted, int) else 0

    def with_note(self, key: str, value: JsonValue) -> Self:
        """Set a note, which the run keeps until it ends."""
        return self.with_(notes=with_entry(self.notes, key, value))

    def say(self, *messages: Message) -> Self:
        return self.with_(messages=(*self.messages, *messages))

    def request_continuation(self, hook: str, rule: str, reason: str) -> Self:
        return self._write(ContinuationDecision.REQUEST, hook, rule, reason)

    def forbid_continuation(self, hook: str, rule: str, reason: str) -> Self:
        """Stop the run, whichever hook requests another step."""
        return self._write(ContinuationDecision.FORBID, hook, rule, reason)

    def allow_stop(self, hook: str, rule: str, reason: str) -> Self:
        """Give the reason why the run may stop here, unless another hook requests a step."""
        return self._write(ContinuationDecision.ALLOW_STOP, hook, rule, reason)

    def _write(self, decision: ContinuationDecision, hook: str, rule: str, reason: str) -> Self:
        outcome = ContinuationOutcome(decision=decision, hook=hook, rule=rule, reason=reason)
        if self.current.continuation is not None:
            outcome = self.current.continuation.resolved_with(outcome)
        return self.with_current(continuation=outcome)

    # --- at before_inference, for this inference alone; with_response at after_inference ---

    def with_messages(self, messages: tuple[Message, ...]) -> Self:
        return self.with_current(input_messages=messages)

    def with_system_prompt(self, system_prompt: str) -> Self:
        return self.with_current(system_prompt=system_prompt)

    def with_section(self, section: str) -> Self:
        """Append a section to the system prompt of this inference."""
        prompt = self.current.system_prompt
        return self.with_system_prompt(f"{prompt}\n\n{section}" if prompt else section)

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Self:
        return self.with_current(tools=tools)

    def with_output_schema(self, schema: Mapping[str, JsonValue]) -> Self:
        """Name the JSON Schema that the final answer must fit, for endpoints that can make it fit."""
        return self.with_current(output_schema=schema)

    def with_response(self, response: ModelResponse) -> Self:
        return self.with_current(response=response)

    # --- at before_tool_use and after_tool_use ---

    def proceed(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        """Allow the current tool call by a rule."""
        return self._judge(VerdictKind.PROCEED, hook, rule, reason, policy)

    def ask(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        return self._judge(VerdictKind.ASK, hook, rule, reason, policy)

    def block(self, hook: str, rule: str, reason: str, policy: PolicyWord | None = None) -> Self:
        """Refuse the current tool call; the model reads the reason. Nothing reverses a block."""
        return self._judge(VerdictKind.BLOCK, hook, rule, reason, policy)

    def _judge(self, kind: VerdictKind, hook: str, rule: str, reason: str, policy: PolicyWord | None) -> Self:
        tool = self.current.tool
        verdict = Verdict(kind=kind, hook=hook, rule=rule, reason=reason, policy=policy)
        if tool.verdict is not None:
            verdict = tool.verdict.strictest(verdict)
        return self.with_execution(verdict=verdict)

    def with_arguments(self, arguments: dict[str, JsonValue]) -> Self:
        return self.with_execution(call=self.current.tool.call.with_(arguments=frozen_arguments(arguments)))

    def with_result(self, result: ToolResult) -> Self:
        return self.with_execution(result=result)

    def with_execution(self, **changes: object) -> Self:
        """Replace fields of the current tool call."""
        return self.with_(current=self.current.with_tool(self.current.tool.with_(**changes)))
