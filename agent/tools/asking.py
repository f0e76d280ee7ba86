"""The approvals of one step: all are answered before any call of the step executes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from agent.decisions import Verdict, VerdictKind
from agent.events import SoughtApproval
from agent.frozen import frozen_arguments
from agent.judged_call import JudgedCall
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ToolExecution
from agent.tools.approval import Approver, Denied, Granted, Pending, Suspended

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)
_WAITING = "this call waits for an approval and did not run"


@dataclass(frozen=True)
class Answered:
    """The answers, by the call's index: calls with a result do not execute, `notes` are for the others."""

    state: AgentState
    results: Mapping[int, ToolResult]
    notes: Mapping[int, str]


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
) -> Answered:
    """Ask the approver about the calls of a step; `judged` has None for calls that cannot run.

    Raises Suspended, with `suspend`, if one waits. Approvals are used up last, when no call waits any more.
    """
    asked = [
        (index, execution)
        for index, execution in enumerate(state.current.tool_executions)
        if judged[index] is not None and execution.verdict is not None and execution.verdict.kind is VerdictKind.ASK
    ]
    if not asked:
        return Answered(state, {}, {})
    answers = {index: await _answer(approver, state, execution) for index, execution in asked}
    sought = [
        _sought(execution, answer.approval_id)
        for index, execution in asked
        if isinstance(answer := answers[index], Pending)
    ]
    if sought and suspend:
        raise Suspended(sought, state)
    executions = list(state.current.tool_executions)
    results: dict[int, ToolResult] = {}
    notes: dict[int, str] = {}

    async def use(granted: Granted) -> str:
        return await approver.use(granted)

    for index, execution in asked:
        answer = answers[index]
        if isinstance(answer, Granted):
            refusal = await _guarded(partial(use, answer), "the approval could not be used: {}".format)
            answer = Denied(refusal, answer.approval_id) if refusal else answer
        executions[index] = execution.with_(approval_id=answer.approval_id)
        if isinstance(answer, Granted):
            notes[index] = answer.note
        elif isinstance(answer, Pending):
            results[index] = ToolResult.error(f"{_WAITING}: {answer.approval_id}", outcome="waiting")
        elif execution.verdict is not None:
            rule = answer.rule or execution.verdict.rule
            refused = execution.verdict.with_(kind=VerdictKind.BLOCK, rule=rule, reason=answer.message)
            executions[index] = executions[index].with_(verdict=refused, approval_outcome=answer.outcome)
            results[index] = blocked_result(refused)
    return Answered(state.with_current(tool_executions=tuple(executions)), results, notes)


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
        problem = f"could not be had from the approver: {why}"
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


def _sought(execution: ToolExecution, approval_id: str) -> SoughtApproval:
    verdict, call = execution.verdict, execution.call
    rule, reason = (verdict.rule, verdict.reason) if verdict is not None else ("", "")
    return SoughtApproval(approval_id=approval_id, call_id=call.id, name=call.name, rule=rule, reason=reason)
