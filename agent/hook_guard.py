"""What a hook may not do: weaken what was decided, or change what is not its to change.

The guard compares what a hook returned with what it was given. Where a hook went too far the given value stays, without
an error: the rest of what the hook said still counts.

- Verdicts and continuations only get stricter; of equal ones the first stays.
- Of a tool call only the arguments can be rewritten, only at before_tool_use, not after a block and not by the
  innermost hook, which judges them; only its result at after_tool_use. Other calls of the step are out of reach.
- Who the run belongs to, and the counters that limits are measured by, belong to the loop; a hook may raise a counter
  (a subagent's tokens) but not lower it.
"""

from __future__ import annotations

from dataclasses import replace

from agent.hook import Hook
from agent.state import AgentState, Spent, ToolExecution
from agent.verdict import Verdict, VerdictKind


def kept_strict(point: str, hook: Hook, given: AgentState, returned: AgentState) -> AgentState:
    """Return `returned` with everything taken back that the hook may not do at this point."""
    ledger = _kept_ledger(given, returned)
    if returned.current is given.current:  # the usual case, and hooks must cost little
        return returned.with_(**ledger) if ledger else returned
    before, after = given.current, returned.current
    continuation = after.continuation
    if before.continuation is not None:
        continuation = before.continuation.resolved_with(continuation) if continuation else before.continuation
    executions, tool_index = before.tool_executions, before.tool_index
    if tool_index is not None and point in ("before_tool_use", "after_tool_use"):
        theirs = (
            after.tool_executions[tool_index] if len(after.tool_executions) > tool_index else executions[tool_index]
        )
        ours = _kept_execution(point, hook, executions[tool_index], theirs)
        executions = (*executions[:tool_index], ours, *executions[tool_index + 1 :])
    current = replace(
        after,
        continuation=continuation,
        tool_executions=executions,
        tool_index=tool_index,
        errors=before.errors,
        hooks_s=before.hooks_s,
        model_s=before.model_s,
        tools_s=before.tools_s,
    )
    return returned.with_(current=current, **ledger)


def _kept_execution(point: str, hook: Hook, given: ToolExecution, returned: ToolExecution) -> ToolExecution:
    verdict = returned.verdict
    if given.verdict is not None:
        verdict = given.verdict.strictest(verdict) if verdict is not None else given.verdict
    if point == "after_tool_use":
        return replace(given, verdict=verdict, result=returned.result)
    if given.blocked or hook.innermost:
        return replace(given, verdict=verdict)
    call = given.call
    if returned.call.arguments is not call.arguments:
        call = call.model_copy(update={"arguments": returned.call.arguments})
    return replace(given, verdict=verdict, call=call)


_OWNED = ("run_id", "thread", "agent", "depth", "started", "hooks_s", "model_s", "tools_s", "stop")
_COUNTERS = ("steps", "tool_calls", "forced_continuations", "active_s")


def _kept_ledger(given: AgentState, returned: AgentState) -> dict[str, object]:
    """Return the fields that must go back to what they were."""
    ledger = {name: getattr(given, name) for name in _OWNED if getattr(returned, name) is not getattr(given, name)}
    for name in _COUNTERS:
        if getattr(returned, name) < getattr(given, name):
            ledger[name] = getattr(given, name)
    if returned.usage is not given.usage:
        ledger["usage"] = given.usage.at_least(returned.usage)
    if returned.others is not given.others:
        ledger["others"] = Spent(
            steps=max(given.others.steps, returned.others.steps),
            tool_calls=max(given.others.tool_calls, returned.others.tool_calls),
            usage=given.others.usage.at_least(returned.others.usage),
        )
    return ledger


def settled_by_innermost(outer: Verdict | None, judged: AgentState, hook: Hook) -> AgentState:
    """Join the innermost hook's own verdict with what the outer hooks had said; its silence is a block."""
    tool = judged.current.tool
    verdict = tool.verdict
    name = hook.name or type(hook).__name__
    if verdict is None:
        verdict = Verdict(kind=VerdictKind.BLOCK, hook=name, rule="no_verdict", reason="policy gave no verdict")
    elif outer is not None and outer.kind >= verdict.kind and outer.kind is not VerdictKind.PROCEED:
        verdict = outer
    return judged.with_(current=judged.current.with_tool(replace(tool, verdict=verdict)))
