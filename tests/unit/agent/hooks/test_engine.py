"""What the engine holds, whatever the hooks do."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import HookFailed
from agent.events import discard
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ContinuationDecision, CurrentExecution, VerdictKind
from tests.examples import examples
from tests.unit.agent.fakes import Events, PolicyThat, allowing, call, execution_of, state


def about_a_call(**arguments: Any) -> AgentState:
    asked = call("execute", **arguments)
    execution = execution_of(asked)
    return state().with_(current=CurrentExecution(tool_executions=(execution,), tool_index=0))


class Writes(Hook):
    """Writes its name into a list at every point it is registered for."""

    def __init__(self, name: str, log: list[str], priority: int = 0) -> None:
        self.name, self.log, self.priority = name, log, priority

    async def before_step(self, state: AgentState) -> AgentState:
        self.log.append(self.name)
        return state

    after_step = before_step


class Does(Hook):
    """Does something to the state at the two tool points and before_step."""

    def __init__(self, act: Any, **attributes: Any) -> None:
        self.act = act
        vars(self).update({"name": "does", **attributes})

    async def before_tool_use(self, state: AgentState) -> AgentState:
        result: AgentState = self.act(state)
        if asyncio.iscoroutine(result):
            result = await result
        return result

    before_step = before_tool_use
    after_tool_use = before_tool_use


async def test_higher_priority_is_outermost_ties_keep_registration_order_and_after_points_reverse() -> None:
    log: list[str] = []
    engine = HookEngine([Writes("a", log), Writes("b", log), Writes("top", log, 9), Writes("c", log)])
    await engine.run("before_step", state(), discard)
    assert log == ["top", "a", "b", "c"]
    log.clear()
    await engine.run("after_step", state(), discard)
    assert log == ["c", "b", "a", "top"]


async def test_the_innermost_hook_is_inside_all_priorities() -> None:
    log: list[str] = []
    inner = Writes("policy", log, 1000)
    inner.innermost = True
    engine = HookEngine([inner, Writes("low", log, -1000)])
    await engine.run("before_step", state(), discard)
    await engine.run("after_step", state(), discard)
    assert log == ["low", "policy", "policy", "low"]


def test_two_innermost_hooks_are_refused() -> None:
    with pytest.raises(ValueError, match="innermost"):
        HookEngine([allowing(), allowing()])


class Misspelled(Hook):
    async def before_tool_used(self, state: AgentState) -> AgentState:
        return state.block("m", "r", "never")


class Plain(Hook):
    def before_step(self, state: AgentState) -> AgentState:  # type: ignore[override]
        return state


class Impatient(Plain):
    timeout_s = "5"  # type: ignore[assignment]

    async def before_step(self, state: AgentState) -> AgentState:  # type: ignore[override]
        return state


@pytest.mark.parametrize(
    "hook, said",
    [
        (Hook(), "Hook overrides no point"),
        (Misspelled(), "Misspelled.before_tool_used is not a hook point"),
        (Plain(), "write `async def before_step`"),
        (Impatient(), "Impatient.timeout_s is '5'"),
        (Misspelled, "give a hook made of it"),
        ("hook", "derive its class from agent.hooks.hook.Hook"),
    ],
)
def test_a_hook_that_could_not_do_its_work_is_refused_when_the_agent_is_put_together(hook: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        HookEngine([hook])


class Leaves(Hook):
    on_failure = "open"

    async def before_step(self, state: AgentState) -> AgentState:
        raise SystemExit(3)


class LateWithoutWaiting(Hook):
    mandatory = True
    timeout_s = 0.001

    async def before_tool_use(self, state: AgentState) -> AgentState:
        time.sleep(0.02)
        return state


async def test_a_hook_that_wants_to_end_the_process_fails_alone() -> None:
    events = Events()
    given_state = state()
    after = await HookEngine([Leaves()]).run("before_step", given_state, events)
    assert after.with_current(hooks_s=0.0) == given_state
    assert [payload["error"] for payload in events.of("hook_failed")] == ["SystemExit: 3"]


async def test_a_hook_that_is_late_without_ever_waiting_is_late_all_the_same() -> None:
    after = await HookEngine([LateWithoutWaiting()]).run("before_tool_use", about_a_call(), discard)
    assert after.current.tool.blocked


@pytest.mark.parametrize(
    "point, wrong, said",
    [
        ("before_step", lambda state: state.say("hello"), "messages takes a tuple of Message"),
        ("before_inference", lambda state: state.with_messages("hello"), "with_messages takes a tuple of Message"),
        ("before_inference", lambda state: state.with_tools(("ls",)), "with_tools takes a tuple of ToolSpec"),
        ("before_inference", lambda state: state.with_system_prompt(None), "with_system_prompt takes a str"),
        ("after_inference", lambda state: state.with_response("hello"), "with_response takes a ModelResponse"),
        ("before_tool_use", lambda state: state.with_arguments("hello"), "with_arguments takes a dict"),
        ("after_tool_use", lambda state: state.with_result("hello"), "with_result takes a ToolResult"),
        ("after_tool_use", lambda state: state.with_result(ToolResult("x")), "is bytes, not str"),
    ],
)
async def test_a_value_of_the_wrong_type_is_the_failure_of_the_hook_that_wrote_it(
    point: Any, wrong: Any, said: str
) -> None:
    class Wrong(Hook):
        on_failure = "open"

    async def write(_self: Hook, given_state: AgentState) -> AgentState:
        return wrong(given_state)  # type: ignore[no-any-return]

    setattr(Wrong, point, write)
    execution = execution_of(call("t"))
    given_state = state().with_current(tool_executions=(execution,), tool_index=0)
    events = Events()
    after = await HookEngine([Wrong()]).run(point, given_state, events)
    assert after.with_current(hooks_s=0.0) == given_state
    (failed,) = events.of("hook_failed")
    assert failed["hook"] == "Wrong"
    assert said in str(failed["error"])


async def test_a_block_cannot_be_taken_back_by_a_later_hook() -> None:
    def unblock(given: AgentState) -> AgentState:
        tool = replace(given.current.tool, verdict=None)
        return given.with_(current=given.current.with_tool(tool)).proceed("evil", "r", "let it pass")

    engine = HookEngine([Does(lambda s: s.block("first", "no", "because"), priority=1), Does(unblock), allowing()])
    verdict = (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.hook, verdict.rule) == (VerdictKind.BLOCK, "first", "no")


async def test_arguments_cannot_be_rewritten_after_a_block() -> None:
    rewrite = Does(lambda s: s.with_arguments({"command": "harmless"}))
    engine = HookEngine([Does(lambda s: s.block("first", "no", "because"), priority=1), rewrite])
    final = await engine.run("before_tool_use", about_a_call(command="rm"), discard)
    assert final.current.tool.call.arguments == {"command": "rm"}


async def test_policy_sees_the_final_arguments_and_cannot_rewrite_them() -> None:
    policy = PolicyThat(lambda s: s.with_arguments({"command": "swapped"}).proceed("policy", "r", "ok"))
    rewrite = Does(lambda s: s.with_arguments({"command": "rewritten"}), priority=-1000)
    final = await HookEngine([policy, rewrite]).run("before_tool_use", about_a_call(command="asked"), discard)
    assert policy.seen == [{"command": "rewritten"}]
    assert final.current.tool.call.arguments == {"command": "rewritten"}


async def test_name_and_id_of_a_call_cannot_be_rewritten() -> None:
    def rename(given: AgentState) -> AgentState:
        tool = replace(given.current.tool, call=ToolCall(id="other", name="read_file", arguments={"path": "x"}))
        return given.with_(current=given.current.with_tool(tool))

    final = await HookEngine([Does(rename)]).run("before_tool_use", about_a_call(), discard)
    assert (final.current.tool.call.id, final.current.tool.call.name) == ("c1", "execute")


async def test_an_outer_proceed_does_not_replace_a_silent_policy() -> None:
    outer = Does(lambda s: s.proceed("outer", "r", "fine by me"))
    engine = HookEngine([outer, PolicyThat(lambda s: s)])
    verdict = (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rule) == (VerdictKind.BLOCK, "no_verdict")


async def test_an_outer_ask_stays_when_policy_lets_the_call_pass() -> None:
    engine = HookEngine([Does(lambda s: s.ask("outer", "look", "a person must look")), allowing()])
    verdict = (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.hook) == (VerdictKind.ASK, "outer")


async def test_the_policy_rule_is_named_even_when_an_outer_hook_let_the_call_pass_first() -> None:
    engine = HookEngine([Does(lambda s: s.proceed("outer", "r", "fine by me")), allowing()])
    verdict = (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.verdict
    assert verdict is not None
    assert verdict.rule == "allow_all"


async def _hang(given: AgentState) -> AgentState:
    await asyncio.Event().wait()
    return given


async def _swallow(given: AgentState) -> AgentState:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return given
    return given


def _raise(given: AgentState) -> AgentState:
    raise RuntimeError("boom")


def _nonsense_inside(given: AgentState) -> AgentState:
    return given.with_(current="nonsense")


async def _cancel_itself(given: AgentState) -> AgentState:
    future: asyncio.Future[AgentState] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


FAILURES = [_raise, _hang, _swallow, _cancel_itself, lambda s: None, lambda s: "nonsense", _nonsense_inside]


@pytest.mark.parametrize("act", FAILURES)
async def test_a_closed_hook_that_fails_blocks_the_call_and_the_next_hook_still_runs(act: Any) -> None:
    events = Events()
    after = Does(lambda s: s.with_metadata("next hook", "ran"), priority=-1)
    engine = HookEngine([Does(act, timeout_s=0.02, name="bad"), after, allowing()])
    final = await engine.run("before_tool_use", about_a_call(), events)
    verdict = final.current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.hook, verdict.rule) == (VerdictKind.BLOCK, "bad", "hook_failed")
    assert final.metadata == {"next hook": "ran"}
    assert events.of("hook_failed")[0]["on_failure"] == "closed"


@pytest.mark.parametrize("act", FAILURES)
async def test_an_open_hook_that_fails_leaves_the_state_and_is_an_event(act: Any) -> None:
    events = Events()
    engine = HookEngine([Does(act, timeout_s=0.02, on_failure="open"), allowing()])
    final = await engine.run("before_tool_use", about_a_call(), events)
    assert final.current.tool.verdict is not None
    assert final.current.tool.verdict.kind is VerdictKind.PROCEED
    assert [payload["on_failure"] for payload in events.of("hook_failed")] == ["open"]


@pytest.mark.parametrize("attributes", [{"mandatory": True}, {"innermost": True}])
async def test_mandatory_and_innermost_hooks_fail_closed_even_when_they_say_open(attributes: dict[str, bool]) -> None:
    engine = HookEngine([Does(_raise, on_failure="open", **attributes)])
    assert (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.blocked


async def test_a_failed_matches_is_a_failure_of_the_hook() -> None:
    engine = HookEngine([Does(lambda s: s, matches=_raise), allowing()])
    assert (await engine.run("before_tool_use", about_a_call(), discard)).current.tool.blocked


async def test_a_closed_failure_withholds_the_result_and_keeps_its_outcome() -> None:
    given = about_a_call().with_result(ToolResult(b"secret", outcome="exited", exit_code=3, stdout=b"secret"))
    result = (await HookEngine([Does(_raise)]).run("after_tool_use", given, discard)).current.tool.result
    assert result is not None
    assert (result.outcome, result.exit_code, result.is_error) == ("exited", 3, True)
    assert b"secret" not in result.content + result.stdout


async def test_a_closed_failure_elsewhere_forbids_another_step() -> None:
    final = await HookEngine([Does(_raise, name="bad")]).run("before_step", state(), discard)
    assert final.current.continuation is not None
    assert final.current.continuation.decision is ContinuationDecision.FORBID
    assert isinstance(final.current.errors[0], HookFailed)


async def test_cancelling_the_run_passes_through_a_hook_that_swallows_it() -> None:
    task = asyncio.ensure_future(HookEngine([Does(_swallow)]).run("before_step", state(), discard))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hook_cannot_lower_the_counters_that_limits_use_nor_drop_a_forbid() -> None:
    def reset(given: AgentState) -> AgentState:
        return given.with_(steps=0, active_s=0.0, run_id="other").cleared()

    given = state(steps=7, active_s=9.0).forbid_continuation("limit", "r", "over")
    final = await HookEngine([Does(reset)]).run("before_step", given, discard)
    assert (final.steps, final.active_s, final.run_id) == (7, 9.0, "r1")
    assert final.current.continuation is not None
    assert final.current.continuation.decision is ContinuationDecision.FORBID


async def test_time_in_hooks_is_measured_with_the_clock() -> None:
    ticks = iter([1.0, 3.5])
    final = await HookEngine([Does(lambda s: s)], clock=lambda: next(ticks)).run("before_step", state(), discard)
    assert final.current.hooks_s == 2.5


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from(["proceed", "ask", "block", "none", "crash"]), st.integers(-2, 2)), max_size=6)
)
async def test_the_strictest_verdict_wins_and_its_first_writer_is_named(hooks: list[tuple[str, int]]) -> None:
    def speak(word: str, name: str) -> Any:
        if word == "crash":
            return _raise
        return (lambda s: s) if word == "none" else (lambda s: getattr(s, word)(name, "r", "why"))

    made = [Does(speak(word, f"h{n}"), name=f"h{n}", priority=p) for n, (word, p) in enumerate(hooks)]
    verdict = (await HookEngine(made).run("before_tool_use", about_a_call(), discard)).current.tool.verdict
    strictness = {"proceed": 0, "ask": 1, "block": 2, "crash": 2}
    order = sorted(range(len(hooks)), key=lambda n: -hooks[n][1])
    spoken = [(strictness[hooks[n][0]], f"h{n}") for n in order if hooks[n][0] != "none"]
    if not spoken:
        assert verdict is None
    else:
        highest = max(kind for kind, _ in spoken)
        assert verdict is not None
        assert (verdict.kind, verdict.hook) == (highest, next(name for kind, name in spoken if kind == highest))


@examples(60)
@given(st.lists(st.sampled_from(["allow_stop", "request_continuation", "forbid_continuation", "none"]), max_size=6))
async def test_continuation_forbid_beats_request_beats_allow_stop_and_the_first_writer_is_named(
    words: list[str],
) -> None:
    def speak(word: str, name: str) -> Any:
        return (lambda s: s) if word == "none" else (lambda s: getattr(s, word)(name, "r", "why"))

    engine = HookEngine([Does(speak(word, f"h{n}")) for n, word in enumerate(words)])
    outcome = (await engine.run("before_step", state(), discard)).current.continuation
    rank = {"allow_stop": 0, "request_continuation": 1, "forbid_continuation": 2}
    spoken = [(rank[word], f"h{n}") for n, word in enumerate(words) if word != "none"]
    if not spoken:
        assert outcome is None
    else:
        highest = max(kind for kind, _ in spoken)
        assert outcome is not None
        assert (outcome.decision, outcome.hook) == (highest, next(name for kind, name in spoken if kind == highest))
