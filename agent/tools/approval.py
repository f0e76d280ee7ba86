"""Approval of tool calls that the hooks ask about.

    Agent.run      a call's settled verdict is ASK -> Approver.answer
                     Granted   the call executes, once
                     Denied    the call is blocked; the model reads the message
                     Pending   no call of the step executes: the run is suspended, and `pending` of its state has the
                               step. Agent.run continues a state with `pending` there: the hooks see the step's calls
                               again, the policy judges them again, and the approver is asked again

A suspended run is nothing but its state. A subagent is not suspended: calls that need an approval are blocked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import JsonValue

from agent.decisions import ContinuationOutcome
from agent.events import SoughtApproval
from agent.frozen import Text, frozen_arguments
from agent.messages import Message, ToolCall, Usage, Value
from agent.state import AgentState, ModelResponse, ToolExecution


@dataclass(frozen=True)
class Granted:
    """The call is approved; the model reads `note` after the result."""

    approval_id: str
    note: str = ""


@dataclass(frozen=True)
class Denied:
    """The approval is denied or expired; the model reads `message`.

    `rule` is the rule that blocks the call, if it is not the one that asked. `outcome` is denied or expired if that is
    the reason.
    """

    message: str
    approval_id: str = ""
    rule: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Pending:
    """There is no answer yet."""

    approval_id: str


class Approver(Protocol):
    """Answers for calls that need an approval. An exception blocks the call."""

    async def edited(self, state: AgentState, call_ids: Sequence[str]) -> Mapping[str, dict[str, JsonValue]]:
        """Return the arguments that approvers changed, by the call's id."""
        ...

    async def answer(self, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
        """Return the answer for a judged call; ask now if that has not been done."""
        ...

    async def use(self, granted: Granted) -> str:
        """Use up an approval, just before its call executes; return why it cannot be used, or nothing."""
        ...


class Suspended(Exception):
    """Calls of the step wait for approvals; none has executed. `state` is the state after their before pass."""

    def __init__(self, sought: Sequence[SoughtApproval], state: AgentState) -> None:
        super().__init__("the step waits for an approval")
        self.sought = tuple(sought)
        self.state = state


class _AskedCall(Value):
    """A tool call as text: its arguments may need an escaping JSON encoder."""

    id: str
    name: str
    arguments: str | None
    raw_arguments: str
    problem: str


class PendingStep(Value):
    """The step of a suspended or stored run, after the model's answer and before its first call."""

    content: Text
    calls: tuple[_AskedCall, ...]
    finish_reason: str
    usage: Usage
    system_prompt: Text
    continuation: ContinuationOutcome | None = None
    hooks_s: float = 0.0
    model_s: float = 0.0
    model_wait_s: float = 0.0
    sought: tuple[SoughtApproval, ...] = ()

    @classmethod
    def of(cls, state: AgentState, response: ModelResponse, suspended: Suspended | None = None) -> Self:
        """Return the step in flight; `suspended` if its calls wait for approvals."""
        same = ("system_prompt", "continuation", "model_s", "model_wait_s")
        calls = (
            {**vars(call), "arguments": None if call.arguments is None else json.dumps(call.arguments)}
            for call in response.message.tool_calls
        )
        return cls(
            content=response.message.content,
            calls=tuple(_AskedCall(**call) for call in calls),
            finish_reason=response.finish_reason,
            usage=response.usage,
            hooks_s=(suspended.state if suspended is not None else state).current.hooks_s,
            sought=suspended.sought if suspended is not None else (),
            **{name: getattr(state.current, name) for name in same},
        )

    def response(self) -> ModelResponse:
        calls = []
        for call in self.calls:
            arguments = None if call.arguments is None else frozen_arguments(json.loads(call.arguments))
            calls.append(ToolCall.model_construct(**{**vars(call), "arguments": arguments}))
        # Without validation: arguments may hold what pydantic refuses.
        message = Message(role="assistant", content=self.content).with_(tool_calls=tuple(calls))
        return ModelResponse.model_construct(message=message, finish_reason=self.finish_reason, usage=self.usage)
