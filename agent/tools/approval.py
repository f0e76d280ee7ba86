"""Approval of tool calls that the hooks ask about: all of a step are answered before any call of it executes.

    Agent.run      a call's settled verdict is ASK -> Approver.answer
                     Granted   the call executes, once
                     Denied    the call is blocked; the model reads the message
                     Pending   no call of the step executes: the run is suspended, and `pending` of its state has the
                               step. Agent.run continues a state with `pending` there: the hooks see the step's calls
                               again, the policy judges them again, and the approver is asked again

A suspended run is nothing but its state. A subagent is not suspended: calls that need an approval are blocked.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

from pydantic import JsonValue

from agent.events import SoughtApproval
from agent.frozen import Text, frozen_arguments
from agent.messages import Message, ProviderData, ToolCall, ToolResult, Usage, Value
from agent.state import AgentState, ContinuationOutcome, ModelResponse, ToolExecution, Verdict, VerdictKind
from agent.tool_call import JudgedCall

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


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
    provider_data: ProviderData | None = None
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
            provider_data=response.message.provider_data,
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
        message = Message(role="assistant", content=self.content, provider_data=self.provider_data)
        message = message.with_(tool_calls=tuple(calls))
        return ModelResponse.model_construct(message=message, finish_reason=self.finish_reason, usage=self.usage)


def blocked_result(verdict: Verdict, unfit: ToolResult | None = None) -> ToolResult:
    """Return the result of a blocked call; `unfit` is another error of the call."""
    reason = verdict.reason.removesuffix(".")
    message = f"Blocked by rule {verdict.rule} of {verdict.hook}: {reason}. The call did not run."
    if verdict.policy_version:
        message = f"{message} Policy version: {verdict.policy_version}."
    if unfit is not None:
        message = f"{message}\nBesides, {unfit.text()}"
    return ToolResult.error(message, outcome="blocked")


async def answered(
    approver: Approver, state: AgentState, judged: Sequence[JudgedCall | None], *, suspend: bool
) -> tuple[AgentState, Mapping[int, ToolResult], Mapping[int, str]]:
    """Ask the approver about the calls of a step; `judged` has None for calls that cannot run.

    Returns, by the call's index, the results of calls that do not execute, and notes for those that do. Raises
    Suspended, with `suspend`, if one waits. Approvals are used up last, when no call waits any more.
    """
    asked = [
        (index, execution, verdict)
        for index, execution in enumerate(state.current.tool_executions)
        if judged[index] is not None and (verdict := execution.verdict) and verdict.kind is VerdictKind.ASK
    ]
    if not asked:
        return state, {}, {}
    answers = {index: await _answer(approver, state, execution) for index, execution, _ in asked}
    sought = []
    for index, execution, verdict in asked:
        if isinstance(answer := answers[index], Pending):
            call, why = execution.call, {"rule": verdict.rule, "reason": verdict.reason}
            sought.append(SoughtApproval(approval_id=answer.approval_id, call_id=call.id, name=call.name, **why))
    if sought and suspend:
        raise Suspended(sought, state)
    executions = list(state.current.tool_executions)
    results: dict[int, ToolResult] = {}
    notes: dict[int, str] = {}

    for index, execution, verdict in asked:
        answer = answers[index]
        if isinstance(answer, Granted):
            refusal = await _guarded(partial(approver.use, answer), "the approval could not be used: {}".format)
            answer = Denied(refusal, answer.approval_id) if refusal else answer
        executions[index] = execution.with_(approval_id=answer.approval_id)
        if isinstance(answer, Granted):
            notes[index] = answer.note
        elif isinstance(answer, Pending):
            said = f"this call did not run: it waits for the approval {answer.approval_id}"
            again = "make the same call again once it is approved"
            results[index] = ToolResult.error(f"{said}; {again}", outcome="waiting")
        else:
            rule = answer.rule or verdict.rule
            refused = verdict.with_(kind=VerdictKind.BLOCK, rule=rule, reason=answer.message)
            executions[index] = executions[index].with_(verdict=refused, approval_outcome=answer.outcome)
            results[index] = blocked_result(refused)
    return state.with_current(tool_executions=tuple(executions)), results, notes


async def edited_calls(
    approver: Approver, state: AgentState, calls: Sequence[ToolCall], sought: Collection[str]
) -> Sequence[ToolCall]:
    """Return calls with the arguments that an approver changed.

    If the approver fails, the calls whose ids are in `sought` do not run: they may have been approved with arguments
    that are not known here.
    """

    async def edited() -> Sequence[ToolCall]:
        known = dict(await approver.edited(state, [call.id for call in calls]))
        return [
            call.with_(arguments=frozen_arguments(dict(known[call.id])), problem="") if call.id in known else call
            for call in calls
        ]

    def failed(why: str) -> Sequence[ToolCall]:
        problem = f"as the approver edited them could not be read: {why}"
        return [call.with_(arguments=None, problem=problem) if call.id in sought else call for call in calls]

    return await _guarded(edited, failed)


async def _answer(approver: Approver, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
    needs = "this call needs an approval, and"
    failed = f"{needs} requesting it failed: "
    answer: object = await _guarded(lambda: approver.answer(state, execution), lambda why: Denied(failed + why))
    if isinstance(answer, Granted | Denied | Pending):
        return answer
    _log.error("the approver answered with %s", type(answer).__name__)
    return Denied(f"{needs} the approver returned {type(answer).__name__} instead of an answer")


async def _guarded(work: Callable[[], Awaitable[_Result]], failed: Callable[[str], _Result]) -> _Result:
    """Return what the host's approver gives, or what `failed` makes of an error: a failure is no approval."""
    try:
        return await work()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        _log.exception("the approver failed")
        return failed(type(error).__name__)
