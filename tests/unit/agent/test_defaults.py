"""What holds where nothing was said: limits and flow of a bare agent, the numbers of hooks, and what a run reports.

The numbers are written out here on purpose: they are promises, and a test that reads them from the code keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.bash import bash
from agent.capabilities.flow import ErrorPolicy, FinishReason, ToolCallPresence, flow
from agent.capabilities.limits import limits
from agent.capabilities.summarization import summarization
from agent.errors import ModelRefused
from agent.hooks.engine import HOOK_FAILED
from agent.hooks.hook import Hook, OnFailure
from agent.loop import Host
from agent.messages import Message, ToolCall
from agent.state import AgentState, ContinuationDecision
from agent.subagents.capability import Subagent, subagents
from agent.tools.tool import Capability
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import Events, FakeExec, FakePiece, FakeShell, SaysInTurn, call, done, says, state, tool


def _endless() -> SaysInTurn:
    """Return a model that calls a tool in each step, each time with other arguments."""
    calls = (says("", call("note", "", number=number)) for number in range(60))
    return SaysInTurn(*calls, ModelRefused("nothing stopped the run"))


def _limits_of(hooks: Sequence[Hook]) -> dict[str, float]:
    return {hook.name: hook.limit for hook in hooks if hasattr(hook, "limit")}


LIMITS: dict[str, float] = {
    "execution_time_limit": 300.0,
    "steps_limit": 25,
    "token_usage_limit": 32_768,
    "tool_call_limit": 200,
    "repeated_calls": 5,
    "forced_continuations_cap": 5,
}


async def test_an_agent_of_nothing_but_a_model_is_stopped_after_25_steps() -> None:
    model = _endless()
    ended = await Agent(model=model).run(state())
    assert ended.stop is not None
    assert (ended.stop.hook, ended.steps, len(model.requests)) == ("steps_limit", 25, 25)


async def test_an_agent_with_other_capabilities_is_stopped_after_25_steps_too() -> None:
    other = Capability("notes", tools=(tool("note", done),))
    ended = await Agent(model=_endless(), capabilities=(other,)).run(state())
    assert ended.stop is not None
    assert (ended.stop.hook, ended.steps) == ("steps_limit", 25)


def test_an_agent_of_nothing_but_a_model_has_every_hook_of_flow_and_limits_once() -> None:
    hooks = Agent(model=_endless()).hooks.hooks
    usual = {hook.name for hook in (*flow().hooks, *limits().hooks)}
    assert {ErrorPolicy.name, FinishReason.name, ToolCallPresence.name, *LIMITS} == usual
    assert {hook.name for hook in hooks} == usual
    assert len(hooks) == len(usual)
    assert _limits_of(hooks) == LIMITS


def test_the_flow_and_the_limits_that_are_given_take_the_place_of_the_usual_ones() -> None:
    hooks = Agent(model=_endless(), capabilities=(limits(steps=3), flow(retries=7))).hooks.hooks
    assert [hook.limit for hook in hooks if hook.name == "steps_limit"] == [3]
    assert [hook.retries for hook in hooks if isinstance(hook, ErrorPolicy)] == [7]


def test_the_default_limits() -> None:
    assert _limits_of(limits().hooks) == LIMITS


def test_each_limit_that_is_set_reaches_its_own_hook() -> None:
    built = limits(
        steps=1, output_tokens=2, execution_time_s=3, tool_calls=4, cost_usd=5, repeated_calls=6, forced_continuations=7
    )
    assert _limits_of(built.hooks) == {
        "steps_limit": 1,
        "token_usage_limit": 2,
        "execution_time_limit": 3,
        "tool_call_limit": 4,
        "cost_limit": 5,
        "repeated_calls": 6,
        "forced_continuations_cap": 7,
    }


def test_the_default_flow() -> None:
    (policy,) = [hook for hook in flow().hooks if isinstance(hook, ErrorPolicy)]
    names = ("retries", "backoff_s", "on_model_error", "on_tool_error", "on_tool_blocked")
    assert [getattr(policy, name) for name in names] == [2, 0.5, "stop", "continue", "continue"]
    (reason,) = [hook for hook in flow().hooks if isinstance(hook, FinishReason)]
    assert reason.on_cut_answer == "stop"


def test_a_hook_that_says_nothing_has_five_seconds_and_fails_closed() -> None:
    assert (Hook.timeout_s, Hook.on_failure) == (5.0, "closed")
    assert (Hook.mandatory, Hook.innermost, Hook.redacts, Hook.priority) == (False, False, False, 0)


class Fails(Hook):
    """Fails before the first step."""

    name = "fails"

    async def before_step(self, state: AgentState) -> AgentState:
        raise RuntimeError("out of order")


async def test_a_hook_that_fails_and_says_nothing_of_it_stops_the_run() -> None:
    model = SaysInTurn(says("done"))
    ended = await Agent(model=model, hooks=(Fails(),)).run(state())
    assert ended.stop is not None
    assert (ended.stop.hook, ended.stop.rule, model.requests) == ("fails", HOOK_FAILED, [])


@pytest.mark.parametrize(
    "asked, mandatory, timeout_s, reported",
    [("open", False, 2.5, "open"), ("closed", False, 7.0, "closed"), ("open", True, 5.0, "closed")],
)
async def test_the_event_of_a_failed_hook_says_its_time_limit_and_how_it_fails(
    asked: OnFailure, mandatory: bool, timeout_s: float, reported: str
) -> None:
    hook = Fails()
    hook.on_failure, hook.mandatory, hook.timeout_s = asked, mandatory, timeout_s
    events = Events()
    await Agent(model=SaysInTurn(says("done")), hooks=(hook,)).run(state(), events)
    assert events.of("hook_failed") == [
        {
            "hook": "fails",
            "point": "before_step",
            "on_failure": reported,
            "timeout_s": timeout_s,
            "error": "RuntimeError: out of order",
        }
    ]


async def test_subagents_are_three_deep_where_no_depth_is_said() -> None:
    spawn = says("", ToolCall(id="", name="spawn_subagent", arguments={"name": "worker", "task": "do it"}))
    model = SaysInTurn(spawn, spawn, spawn, says("done"))
    capability = subagents({"worker": Subagent("works", "You work.")}, model)
    await Agent(model=model, capabilities=(capability,)).run(state())
    can_spawn = [any(spec.name == "spawn_subagent" for spec in request.tools) for request in model.requests]
    assert can_spawn[:4] == [True, True, True, False]


@pytest.mark.parametrize("messages, kept", [(40, 4), (100, 10), (101, 11), (200, 20)])
async def test_a_summary_leaves_the_newest_ten_percent_of_the_messages(
    messages: int, kept: int, tmp_path: Path
) -> None:
    thread = tuple(Message(role="user", content=f"{number:04} " + "x" * 400) for number in range(messages))
    model = SaysInTurn(says("the summary"), says("done"))
    capability = summarization(model, LocalFS(tmp_path), context_window_tokens=4_000)
    await Agent(model=model, capabilities=(capability,)).run(AgentState(run_id="r1", thread="t", messages=thread))
    shown = model.requests[1].messages
    assert "the summary" in shown[0].content
    assert shown[1:] == thread[-kept:]


class ForbidsAfterInference(Hook):
    """Forbids, or fails, as soon as the model has answered."""

    name = "forbids"

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    async def after_inference(self, state: AgentState) -> AgentState:
        if self._fails:
            raise RuntimeError("out of order")
        return state.forbid_continuation(self.name, "enough", "it is enough")


class Witness(Hook):
    """Keeps what it sees at the two points that end a step."""

    name = "witness"
    mandatory = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def after_step(self, state: AgentState) -> AgentState:
        return self._saw("after_step", state)

    async def should_continue(self, state: AgentState) -> AgentState:
        return self._saw("should_continue", state)

    def _saw(self, point: str, state: AgentState) -> AgentState:
        outcome = state.current.continuation
        self.seen.append((point, outcome and (outcome.decision, outcome.hook)))
        return state


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("calls", [(), (call("note", ""),)])
async def test_hooks_at_the_end_of_a_step_run_also_when_the_run_was_forbidden_after_the_inference(
    fails: bool, calls: tuple[Any, ...]
) -> None:
    witness = Witness()
    model = SaysInTurn(says("", *calls))
    ended = await Agent(model=model, hooks=(ForbidsAfterInference(fails=fails), witness)).run(state())
    forbidden = (ContinuationDecision.FORBID, "forbids")
    assert witness.seen == [("after_step", forbidden), ("should_continue", forbidden)]
    assert ended.stop is not None
    assert (ended.stop.decision, ended.stop.hook) == forbidden
    assert (ended.tool_calls, len(model.requests)) == (0, 1)


class ForbidsAfterStep(Hook):
    """Forbids when a step has been taken."""

    name = "forbids"
    priority = -1_000  # before the witness: after_step runs from the lowest priority

    async def after_step(self, state: AgentState) -> AgentState:
        return state.forbid_continuation(self.name, "enough", "it is enough")


async def test_should_continue_is_asked_also_when_the_run_was_forbidden_after_the_step() -> None:
    witness = Witness()
    await Agent(model=_endless(), hooks=(ForbidsAfterStep(), witness)).run(state())
    forbidden = (ContinuationDecision.FORBID, "forbids")
    assert witness.seen == [("after_step", forbidden), ("should_continue", forbidden)]


async def test_the_output_of_a_command_is_streamed_while_it_runs() -> None:
    pieces = (FakePiece("stdout", b"one\n"), FakePiece("stderr", b"bad\n"), FakePiece("stdout", b"two\n"))
    model = SaysInTurn(says("", call("execute", command="make")), says("done"))
    events = Events()
    capabilities = (bash(FakeShell(FakeExec(output=pieces))),)
    await Agent(model=model, capabilities=capabilities, host=Host(new_call_id=lambda: "call_1")).run(state(), events)
    reported = events.of("tool_output")
    assert [(one["call_id"], one["stream"], one["text"]) for one in reported] == [
        ("call_1", "stdout", "one\n"),
        ("call_1", "stderr", "bad\n"),
        ("call_1", "stdout", "two\n"),
    ]
    types = [event.type for event in events]
    last_reported = len(types) - 1 - types[::-1].index("tool_output")
    assert types.index("tool_call_started") < types.index("tool_output")
    assert last_reported < types.index("tool_call_finished")
