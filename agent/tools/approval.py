"""Approval of a tool call that the hooks want somebody's word for.

    Agent.run      a call's settled verdict is ASK -> Approver.answer
                     Granted   the call executes, once
                     Denied    the call is blocked; the model is told the message
                     Pending   no call of the step executes: the run is suspended, and `pending` of its state says for
                               what. A state with `pending` that is given to Agent.run goes on from there: the hooks
                               see the step's calls again, the policy judges them again, the approver is asked again

A suspended run is nothing but its state. Subagents are not suspended: what they would have to ask for is blocked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import JsonValue

from agent.decisions import ContinuationOutcome
from agent.frozen import Text, frozen_arguments
from agent.messages import Message, ToolCall, Usage, Value
from agent.state import AgentState, ModelResponse, ToolExecution


@dataclass(frozen=True)
class Granted:
    """Somebody approved this very call; `note` is told to the model after the result."""

    approval_id: str
    note: str = ""


@dataclass(frozen=True)
class Denied:
    """Somebody refused, or nobody answered in time; `message` is told to the model.

    `rule` is named as what blocks the call where it is not the one that asked. `outcome` is what became of the
    approval, denied or expired, where that is why.
    """

    message: str
    approval_id: str = ""
    rule: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Pending:
    """Nobody has answered yet."""

    approval_id: str


class Approver(Protocol):
    """Knows what was approved. What it raises blocks the call."""

    async def edited(self, state: AgentState, call_ids: Sequence[str]) -> Mapping[str, dict[str, JsonValue]]:
        """Return the arguments that an approver put in the place of a call's own, by the call's id."""
        ...

    async def answer(self, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
        """Return the word on a call as it was judged; one that nobody was asked about is asked now."""
        ...

    async def use(self, granted: Granted) -> str:
        """Use an approval up, just before its call executes; return why it cannot be used, nothing when it can."""
        ...


class ApprovalSought(Value):
    """One call that a suspended run waits for."""

    approval_id: str
    call_id: str
    name: str
    rule: str
    reason: str


class Suspended(Exception):
    """Calls of the step wait for an approval; none has executed. `state` is what their before pass made of it."""

    def __init__(self, sought: Sequence[ApprovalSought], state: AgentState) -> None:
        super().__init__("the step waits for an approval")
        self.sought = tuple(sought)
        self.state = state


class _AskedCall(Value):
    """A tool call as text: its arguments may hold what no JSON encoder but an escaping one takes."""

    id: str
    name: str
    arguments: str | None
    raw_arguments: str
    problem: str


class PendingStep(Value):
    """The step of a run that is suspended or was kept, as it was when the model had answered and no call had begun."""

    content: Text
    calls: tuple[_AskedCall, ...]
    finish_reason: str
    usage: Usage
    system_prompt: Text
    continuation: ContinuationOutcome | None = None
    hooks_s: float = 0.0
    model_s: float = 0.0
    model_wait_s: float = 0.0
    sought: tuple[ApprovalSought, ...] = ()

    @classmethod
    def of(cls, state: AgentState, response: ModelResponse, suspended: Suspended | None = None) -> Self:
        """Return what must be kept of the step in flight; `suspended` where calls of it wait for an approval."""
        calls = tuple(
            _AskedCall(
                id=call.id,
                name=call.name,
                arguments=None if call.arguments is None else json.dumps(call.arguments),
                raw_arguments=call.raw_arguments,
                problem=call.problem,
            )
            for call in response.message.tool_calls
        )
        current = state.current
        return cls(
            content=response.message.content,
            calls=calls,
            finish_reason=response.finish_reason,
            usage=response.usage,
            system_prompt=current.system_prompt,
            continuation=current.continuation,
            hooks_s=(suspended.state if suspended is not None else state).current.hooks_s,
            model_s=current.model_s,
            model_wait_s=current.model_wait_s,
            sought=suspended.sought if suspended is not None else (),
        )

    def response(self) -> ModelResponse:
        """Return the model's answer again."""
        calls = tuple(
            ToolCall.model_construct(
                id=call.id,
                name=call.name,
                arguments=None if call.arguments is None else frozen_arguments(json.loads(call.arguments)),
                raw_arguments=call.raw_arguments,
                problem=call.problem,
            )
            for call in self.calls
        )
        message = Message(role="assistant", content=self.content).model_copy(update={"tool_calls": calls})
        return ModelResponse(
            message=Message(role="assistant"), finish_reason=self.finish_reason, usage=self.usage
        ).model_copy(update={"message": message})
