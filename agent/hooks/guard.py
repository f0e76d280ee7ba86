"""Checks hooks when an agent is made, and keeps them from weakening decisions and changing what they do not own.

A change that a hook may not make is reverted without an error; its other changes count.

- Verdicts and continuations only get stricter; of equal ones the first stays.
- Of a tool call only the arguments can be rewritten, only at before_tool_use, not after a block and not by the
  innermost hook, which judges them; only its result at after_tool_use. Other calls of the step are out of reach.
- The counters that limits are measured by belong to the loop; a hook may raise one (a subagent's tokens), not lower it.
"""

import functools
import inspect

from agent.frozen import FrozenDict, freeze
from agent.hooks.hook import POINTS, Hook, hook_name
from agent.messages import Message, ToolResult, ToolSpec
from agent.state import TIMES, AgentState, ModelResponse, ToolExecution, Verdict, VerdictKind

_KNOWN = (*POINTS, "around_inference", "around_tool_use")
# A method with such a prefix that is not a point is misspelled: it would never be called.
_LIKE_A_POINT = ("before_", "after_", "around_", "on_", "execution_", "should_")


def overrides(hook: Hook, method: str) -> bool:
    """Return whether a hook overrides the method of a point."""
    return getattr(getattr(hook, method), "__func__", None) is not getattr(Hook, method)


def check_hook(hook: Hook) -> None:
    """Raise TypeError or ValueError for a hook that could not work; says how to fix it."""
    if isinstance(hook, type):
        raise TypeError(f"{hook.__name__} is a class: give a hook made of it, as in {hook.__name__}()")
    if not isinstance(hook, Hook):
        raise TypeError(f"{hook!r} is not a hook: derive its class from agent.hooks.hook.Hook")
    kind, points = type(hook), ", ".join(_KNOWN)
    if (method := _misspelled(kind)) is not None:  # type: ignore[arg-type] # a class is hashable
        raise ValueError(
            f"{kind.__name__}.{method} is not a hook point and would never be called; the points are {points}"
        )
    mine = [point for point in _KNOWN if overrides(hook, point)]
    if not mine:
        raise ValueError(f"{kind.__name__} overrides no point and would do nothing; the points are {points}")
    if inspect.iscoroutinefunction(hook.matches):
        raise TypeError(
            f"{kind.__name__}.matches is a coroutine, which counts as true whatever it returns: write `def matches`"
        )
    for point in mine:
        method = getattr(hook, point)
        if inspect.ismethod(method) and not inspect.iscoroutinefunction(method):
            raise TypeError(f"{kind.__name__}.{point} is a plain function: write `async def {point}`")
    if type(hook.timeout_s) not in (int, float) or hook.timeout_s < 0:
        raise TypeError(f"{kind.__name__}.timeout_s is {hook.timeout_s!r}: a number of seconds is expected")
    if type(hook.priority) not in (int, float):
        raise TypeError(f"{kind.__name__}.priority is {hook.priority!r}: a number is expected")


# A run makes a dozen hooks of the same few classes.
@functools.lru_cache(256)
def _misspelled(kind: type[Hook]) -> str | None:
    """Return the name of a class's coroutine function that looks like a point and is none."""
    for method in dir(kind):
        like_a_point = method.startswith(_LIKE_A_POINT) and method not in _KNOWN
        if like_a_point and inspect.iscoroutinefunction(getattr(kind, method, None)):
            return method
    return None


def kept_strict(point: str, hook: Hook, given: AgentState, returned: AgentState) -> AgentState:
    """Return `returned` with everything taken back that the hook may not do at this point.

    Raises TypeError for a value of the wrong type, and ValueError for one that cannot be stored.
    """
    _check_types(given, returned)
    ledger = _kept_ledger(given, returned) | _frozen_values(returned)
    if returned.current is given.current:  # the usual case, and hooks must cost little
        return returned.with_(**ledger) if ledger else returned
    before, after = given.current, returned.current
    continuation = after.continuation
    if before.continuation is not None:
        continuation = before.continuation.resolved_with(continuation) if continuation else before.continuation
    executions, tool_index = before.tool_executions, before.tool_index
    if tool_index is not None and point in ("before_tool_use", "after_tool_use"):
        mine = executions[tool_index]
        theirs = after.tool_executions[tool_index] if len(after.tool_executions) > tool_index else mine
        ours = _kept_execution(point, hook, mine, theirs)
        executions = (*executions[:tool_index], ours, *executions[tool_index + 1 :])
    current = after.with_(
        continuation=continuation,
        tool_executions=executions,
        tool_index=tool_index,
        errors=before.errors,
        **{name: getattr(before, name) for name in TIMES},
    )
    return returned.with_(current=current, **ledger)


def _check_types(given: AgentState, returned: AgentState) -> None:
    before, after = given.current, returned.current
    tuples: tuple[tuple[str, object, object, type], ...] = (
        ("messages", returned.messages, given.messages, Message),
        ("with_messages", after.input_messages, before.input_messages, Message),
        ("with_tools", after.tools, before.tools, ToolSpec),
    )
    for what, new, old, kind in tuples:
        if new is not old and not (isinstance(new, tuple) and all(isinstance(value, kind) for value in new)):
            raise TypeError(f"{what} takes a tuple of {kind.__name__}, not {type(new).__name__} of other things")
    if after is before:
        return
    _check_type("with_system_prompt", after.system_prompt, str)
    if after.response is not before.response:
        _check_type("with_response", after.response, ModelResponse)
    if after.tool_index is None or len(after.tool_executions) <= after.tool_index:
        return
    tool = after.tool_executions[after.tool_index]
    if tool.call.arguments is not None:
        _check_type("with_arguments", tool.call.arguments, dict)
    if tool.result is not None:
        _check_type("with_result", tool.result, ToolResult)
        check_result(tool.result)


def _check_type(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} takes a {kind.__name__}, not {type(value).__name__}")


def check_result(result: ToolResult) -> None:
    """Raise TypeError for a result whose content is no bytes."""
    if not isinstance(result.content, bytes):
        raise TypeError(f"the content of a ToolResult is bytes, not {type(result.content).__name__}")


def _frozen_values(returned: AgentState) -> dict[str, object]:
    """Return the fields that a hook put there without a with_... method, frozen."""
    try:
        return {
            name: freeze(value)
            for name in ("metadata", "notes")
            if type(value := getattr(returned, name)) is not FrozenDict
        }
    except ValueError as error:
        raise ValueError(f"what it wrote into the state is not JSON: {error}") from error


def _kept_execution(point: str, hook: Hook, given: ToolExecution, returned: ToolExecution) -> ToolExecution:
    verdict = returned.verdict
    reworded = point == "after_tool_use" and hook.mandatory and _only_reworded(given, verdict)
    if given.verdict is not None and not reworded:
        verdict = given.verdict.strictest(verdict) if verdict is not None else given.verdict
    if point == "after_tool_use":
        return given.with_(verdict=verdict, result=returned.result)
    if given.blocked or hook.innermost:
        return given.with_(verdict=verdict)
    call = given.call
    if returned.call.arguments is not call.arguments:
        call = call.with_(arguments=returned.call.arguments)
    return given.with_(verdict=verdict, call=call)


def _only_reworded(given: ToolExecution, verdict: Verdict | None) -> bool:
    """Return whether a verdict is the same but for its words: redaction takes out of them what they quote of a call."""
    said = given.verdict
    if said is None or verdict is None or (verdict.policy is None) != (said.policy is None):
        return False
    policy = verdict.policy and said.policy and verdict.policy.with_(asked=said.policy.asked)
    return verdict.with_(reason=said.reason, policy=policy) == said


_OWNED = ("run_id", "thread", "agent", "depth", "started", *TIMES, "stop", "pending")
_COUNTERS = ("steps", "tool_calls", "forced_continuations", "active_s")


def _kept_ledger(given: AgentState, returned: AgentState) -> dict[str, object]:
    ledger = {name: getattr(given, name) for name in _OWNED if getattr(returned, name) is not getattr(given, name)}
    lowered = [name for name in _COUNTERS if getattr(returned, name) < getattr(given, name)]
    ledger |= {name: getattr(given, name) for name in lowered}
    if returned.usage is not given.usage:
        ledger["usage"] = given.usage.at_least(returned.usage)
    if returned.others is not given.others:
        ledger["others"] = given.others.at_least(returned.others)
    return ledger


def settled_by_innermost(outer: Verdict | None, judged: AgentState, hook: Hook) -> AgentState:
    """Join the innermost hook's own verdict with what the outer hooks had said; its silence is a block."""
    tool, verdict = judged.current.tool, judged.current.tool.verdict
    if verdict is None:
        verdict = Verdict(
            kind=VerdictKind.BLOCK, hook=hook_name(hook), rule="no_verdict", reason="policy gave no verdict"
        )
    elif outer is not None and outer.kind >= verdict.kind and outer.kind is not VerdictKind.PROCEED:
        verdict = outer.with_(policy=verdict.policy)
    return judged if verdict is tool.verdict else judged.with_execution(verdict=verdict)
