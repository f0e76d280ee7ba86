"""Runs hooks: in order, one after another, bounded in time, and never weaker than what was already decided.

Higher priority is further out; of equal ones the one registered first is further out. `before_*`, execution_start,
should_continue and on_error run outermost first, the others in exactly the reverse order. The innermost hook (policy;
one at most) is inside all others, so that it judges the final arguments. A hook that fails never raises into the run:
its failure policy applies (see Hook), and the hooks after it still run.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from pydantic import JsonValue

from agent.cancellation import Cancellation, within
from agent.errors import HookFailed, ModelError
from agent.events import EventSink, emit
from agent.hooks.guard import check_hook, check_result, kept_strict, overrides, settled_by_innermost
from agent.hooks.hook import POINTS, Hook, InferenceRequest, NextInference, NextToolUse, Point, hook_name
from agent.messages import ToolResult
from agent.state import AgentState, ModelResponse, ToolExecution, Verdict

_INNERMOST_FIRST = frozenset({"after_inference", "after_tool_use", "after_step", "execution_end"})
# Longer metadata values, as JSON, are not repeated in the event log.
_SHOWN_LIMIT_CHARS = 64 * 1024

HOOK_FAILED = "hook_failed"
"""The rule with which the failure of a closed hook blocks, withholds or stops."""

_Asked = TypeVar("_Asked")
_Given = TypeVar("_Given")
_Handler = Callable[[AgentState], Awaitable[AgentState]]


class HookEngine:
    """The hooks of an agent, ready to run. It has no state: any number of runs may share one."""

    def __init__(self, hooks: Iterable[Hook] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Register the overridden methods of the hooks.

        Raises ValueError for two innermost hooks or one that does nothing, TypeError for something that is not a hook.
        """
        hooks = tuple(hooks)
        for hook in hooks:
            check_hook(hook)
        # sorted() is stable, so ties keep the order of registration.
        ordered = sorted(hooks, key=lambda hook: (hook.innermost, -hook.priority))
        if sum(hook.innermost for hook in ordered) > 1:
            raise ValueError("two hooks say they are innermost; only one, the policy, can be")
        self.hooks = tuple(ordered)
        self.innermost = next((hook for hook in ordered if hook.innermost), None)
        self._clock = clock
        self._points: dict[Point, tuple[tuple[Hook, _Handler], ...]] = {}
        for point in POINTS:
            registered = tuple((hook, getattr(hook, point)) for hook in ordered if overrides(hook, point))
            self._points[point] = registered[::-1] if point in _INNERMOST_FIRST else registered
        self._inference_rings = tuple(hook for hook in ordered if overrides(hook, "around_inference"))
        self._tool_rings = tuple(hook for hook in ordered if overrides(hook, "around_tool_use"))
        self._suspended = tuple(hook.suspended for hook in ordered if overrides(hook, "suspended"))
        self._hearing = tuple(hook.hook_ran for hook in ordered if overrides(hook, "hook_ran"))

    async def run(
        self,
        point: Point,
        state: AgentState,
        events: EventSink,
        *,
        finalise: Callable[[ToolExecution], ToolExecution] | None = None,
    ) -> AgentState:
        """Run the point's hooks. Raises nothing but cancellation.

        `finalise` brings the tool call in question into its final form, after the last rewrite of its arguments and
        before the innermost hook judges them.
        """
        registered = self._points[point]
        started_s = self._clock()
        hooks_s = state.current.hooks_s
        for hook, handler in registered:
            if hook.innermost and point == "before_tool_use":
                state = await self._judge(hook, handler, _finalised(state, finalise), events)
                finalise = None
            else:
                state = await self._guarded(point, hook, handler, state, events)
        state = _finalised(state, finalise)
        if registered:
            state = state.with_current(hooks_s=hooks_s + self._clock() - started_s)
        return state

    def suspended(self, state: AgentState) -> None:
        for hear in self._suspended:
            hear(state)

    async def judged_again(self, state: AgentState, events: EventSink) -> Verdict | None:
        """Return the innermost hook's verdict on the tool call in question now; None without such a hook."""
        for hook, handler in self._points["before_tool_use"]:
            if hook.innermost:
                judged = await self._judge(hook, handler, state.with_execution(verdict=None), events)
                return judged.current.tool.verdict
        return None

    async def _judge(self, hook: Hook, handler: _Handler, state: AgentState, events: EventSink) -> AgentState:
        """Run the innermost hook without the outer hooks' verdict, which must not count as its own."""
        tool = state.current.tool
        if tool.blocked:
            return await self._guarded("before_tool_use", hook, handler, state, events)
        blank = state if tool.verdict is None else state.with_execution(verdict=None)
        judged = await self._guarded("before_tool_use", hook, handler, blank, events)
        return settled_by_innermost(tool.verdict, judged, hook)

    async def _guarded(
        self, point: Point, hook: Hook, handler: _Handler, state: AgentState, events: EventSink
    ) -> AgentState:
        started_s = self._clock() if self._hearing else 0.0
        try:
            returned = await _bounded(point, hook, handler, state)
            _emit_changes(point, hook, state, returned, events)
        except HookFailed as failure:
            return _closed(failure, state) if _emit_failed(failure, hook, events) else state
        finally:
            for hear in self._hearing:
                hear(point, hook_name(hook), state, self._clock() - started_s)
        return returned

    def around_inference(
        self, center: NextInference, events: EventSink
    ) -> Callable[[InferenceRequest], Awaitable[ModelResponse]]:
        """Return `center` inside the rings. Raises ModelError from the center, HookFailed from a ring."""
        for hook in reversed(self._inference_rings):
            center = _ring("around_inference", hook, hook.around_inference, center, ModelResponse, events)
        return center

    def around_tool_use(self, center: NextToolUse, events: EventSink) -> NextToolUse:
        """Return `center` inside the rings. Raises HookFailed from a ring."""
        for hook in reversed(self._tool_rings):
            center = _ring("around_tool_use", hook, hook.around_tool_use, center, ToolResult, events)
        return center


def _finalised(state: AgentState, finalise: Callable[[ToolExecution], ToolExecution] | None) -> AgentState:
    if finalise is None or state.current.tool.blocked:
        return state
    return state.with_(current=state.current.with_tool(finalise(state.current.tool)))


async def _bounded(point: Point, hook: Hook, handler: _Handler, state: AgentState) -> AgentState:
    """Run one hook at one point; every failure becomes HookFailed, and only a cancellation of the task passes."""
    cancellation = await Cancellation.watch()
    loop = asyncio.get_running_loop()
    due_s = loop.time() + hook.timeout_s
    problem = ""
    cause: BaseException | None = None
    kept = state
    try:
        if not hook.matches(state):
            return state
        returned: object = await within(due_s, handler(state))
        if not isinstance(returned, AgentState):
            problem = f"it returned {type(returned).__name__} instead of the AgentState"
        elif returned is not state:
            kept = kept_strict(point, hook, state, returned)
    except BaseException as error:  # any exception is a failure of this hook alone
        problem, cause = _problem(error, cancellation), error
    cancellation.heed()
    if loop.time() >= due_s:  # also for a hook that never awaited
        problem = f"it took longer than {hook.timeout_s:g} s"
    if problem:
        raise HookFailed(hook_name(hook), point, problem) from cause
    return kept


def _problem(error: BaseException, cancellation: Cancellation) -> str:
    """Return what made a hook fail. Raises the error if it is none of the hook's: the task was cancelled or closed."""
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return f"{type(error).__name__}: {error}"
    if cancellation.asked or isinstance(error, GeneratorExit):
        raise error
    return "it was cancelled from within"  # by its time limit, or by something that it awaited


def _emit_failed(failure: HookFailed, hook: Hook, events: EventSink) -> bool:
    closed = hook.mandatory or hook.innermost or hook.on_failure != "open"
    emit(
        events,
        "hook_failed",
        hook=failure.hook,
        point=failure.point,
        on_failure="closed" if closed else "open",
        timeout_s=hook.timeout_s,
        error=failure.problem,
    )
    return closed


def _emit_changes(point: Point, hook: Hook, before: AgentState, after: AgentState, events: EventSink) -> None:
    """Emit state_changed for messages and metadata; a large value is named, not shown."""
    if after.metadata is before.metadata and after.messages is before.messages:
        return
    old, new = before.metadata, after.metadata
    changed = {key: value for key, value in new.items() if key not in old or old[key] is not value}
    messages = len(after.messages) if after.messages is not before.messages else None
    sizes_chars = {key: len(json.dumps({key: value}, ensure_ascii=False)) for key, value in changed.items()}
    large: list[JsonValue] = [key for key, chars in sizes_chars.items() if chars > _SHOWN_LIMIT_CHARS]
    removed: list[JsonValue] = [key for key in old if key not in new]
    if not changed and not removed and messages is None:
        return
    emit(
        events,
        "state_changed",
        hook=hook_name(hook),
        point=point,
        metadata={key: value for key, value in changed.items() if key not in large},
        large=large,
        removed=removed,
        messages=messages,
    )


def _closed(failure: HookFailed, state: AgentState) -> AgentState:
    if failure.point == "before_tool_use":
        return state.block(failure.hook, HOOK_FAILED, str(failure))
    if failure.point == "after_tool_use":
        return state.with_result(withheld(state.current.tool.result, str(failure)))
    state = state.with_current(errors=(*state.current.errors, failure))
    return state.forbid_continuation(failure.hook, HOOK_FAILED, str(failure))


def withheld(result: ToolResult | None, reason: str) -> ToolResult:
    """Return a replacement for a result that must not be shown; it keeps the outcome."""
    message = f"The result of this call is withheld: {reason}".encode("utf-8", "replace")
    outcome, exit_code = ("failed", None) if result is None else (result.outcome, result.exit_code)
    return ToolResult(content=message, outcome=outcome, is_error=True, exit_code=exit_code)


def _ring(
    point: str,
    hook: Hook,
    ring: Callable[[_Asked, Callable[[_Asked], Awaitable[_Given]]], Awaitable[_Given]],
    inner: Callable[[_Asked], Awaitable[_Given]],
    gives: type[Any],
    events: EventSink,
) -> Callable[[_Asked], Awaitable[_Given]]:
    async def around(asked: _Asked) -> _Given:
        given: list[_Given] = []
        raised: list[BaseException] = []
        cancellation = await Cancellation.watch()

        async def next_(again: _Asked) -> _Given:
            try:
                given.append(await inner(again))
            except Exception as error:  # noted, because the ring may swallow it
                raised.append(error)
                raise
            return given[-1]

        try:
            returned = await ring(asked, next_)
            if not isinstance(returned, gives):
                raise TypeError(f"it returned {type(returned).__name__} instead of {gives.__name__}")
            if isinstance(returned, ToolResult):
                check_result(returned)
        except (ModelError, HookFailed):
            raise  # from further in
        except BaseException as error:
            if error in raised:
                raise  # from further in, and passed on as it was
            failure = HookFailed(hook_name(hook), point, _problem(error, cancellation))
            if _emit_failed(failure, hook, events):
                raise failure from error
            # A failed open ring is ignored; what it wraps must not happen twice.
            return given[-1] if given else await inner(asked)
        return returned

    return around
