"""The loop: its order, its ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.bash import bash
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelRefused, ModelUnavailable
from agent.hooks.engine import POINTS
from agent.hooks.hook import Hook
from agent.messages import Message, Usage
from agent.state import AgentState
from agent.tools.tool import Capability
from tests.unit.agent.fakes import Events, FakeShell, SaysInTurn, allowing, call, done, says, state, tool


async def no_sleep(_: float) -> None:
    """Backoff without waiting."""


FLOW = flow(sleep=no_sleep)
TOOLS = Capability("tools", tools=(tool("t", done),))


async def run(model: SaysInTurn, *hooks: Hook, capabilities: Any = (), **bounds: Any) -> tuple[AgentState, Events]:
    events = Events()
    agent = Agent(model=model, capabilities=(limits(**bounds), FLOW, TOOLS, *capabilities), hooks=(*hooks, allowing()))
    return await agent.run(state(), events), events


def finished(events: Events) -> dict[str, Any]:
    assert [event.type for event in events].count("run_finished") == 1
    assert events[-1].type == "run_finished"
    return dict(events[-1].payload)


async def test_a_run_with_a_tool_call_and_an_answer() -> None:
    final, events = await run(SaysInTurn(says("looking", call("t", "x")), says("all is well")))
    assert [message.role for message in final.messages] == ["user", "assistant", "tool", "assistant"]
    assert final.messages[2].content == "done"
    assert final.messages[2].tool_call_id == final.messages[1].tool_calls[0].id
    end = finished(events)
    assert (end["status"], end["answer"], end["steps"]) == ("completed", "all is well", 2)
    assert end["stop"]["hook"] == "finish_reason"
    assert end["usage"] == Usage(input_tokens=2, output_tokens=2).model_dump()
    assert (final.steps, final.tool_calls) == (2, 1)
    assert final.current.response is None


async def test_points_come_in_the_order_of_the_design() -> None:
    log: list[str] = []

    class Log(Hook):
        pass

    def make(point: str) -> Any:
        async def write(self: Hook, state: AgentState) -> AgentState:
            log.append(point)
            return state

        return write

    for point in POINTS:
        setattr(Log, point, make(point))
    await run(SaysInTurn(says("", call("t")), says("hi")), Log())
    step = ["before_step", "before_inference", "after_inference"]
    end = ["after_step", "should_continue"]
    tools = ["before_tool_use", "after_tool_use"]
    assert log == ["execution_start", *step, *tools, *end, *step, *end, "execution_end"]


@pytest.mark.parametrize(
    "limits, rule, number",
    [
        ({"steps": 3}, "max_steps", "the limit is 3"),
        ({"output_tokens": 2}, "max_output_tokens", "the limit is 2"),
        ({"execution_time_s": 0.0}, "max_seconds", "the limit is 0 s"),
    ],
)
async def test_each_limit_stops_the_run_before_the_model_is_asked_and_names_its_numbers(
    limits: dict[str, Any], rule: str, number: str
) -> None:
    model = SaysInTurn(says("", call("t")))
    final, events = await run(model, **limits)
    end = finished(events)
    assert (end["status"], end["stop"]["rule"]) == ("stopped", rule)
    assert number in end["stop"]["reason"]
    assert len(model.requests) == final.steps


async def test_forced_continuations_are_capped() -> None:
    class Never(Hook):
        async def should_continue(self, state: AgentState) -> AgentState:
            return state.request_continuation("never", "more", "more")

    final, events = await run(SaysInTurn(says("done")), Never(), forced_continuations=2)
    assert final.forced_continuations == 3
    assert finished(events)["stop"]["rule"] == "max_forced_continuations"


async def test_no_hook_at_all_ends_after_one_step_with_a_named_rule() -> None:
    bare = (Capability("flow"), Capability("limits"))
    final = await Agent(model=SaysInTurn(says("hi")), capabilities=bare).run(state())
    assert final.stop is not None
    assert (final.stop.hook, final.stop.rule) == ("loop", "no_request")


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_cut_answer_is_reported(reason: str) -> None:
    _, events = await run(SaysInTurn(says("half", finish_reason=reason)))
    end = finished(events)
    assert (end["status"], end["stop"]["rule"]) == ("stopped", "model_cut")
    assert reason in end["stop"]["reason"]
    assert "cut" in finished(events)["stop"]["reason"]


async def test_a_model_that_is_away_for_a_moment_is_asked_again() -> None:
    model = SaysInTurn(ModelUnavailable("away"), ModelUnavailable("away"), says("back"))
    final, events = await run(model)
    assert finished(events)["answer"] == "back"
    assert model.requests[2].messages == model.requests[0].messages
    assert (final.steps, len(events.of("model_failed"))) == (1, 2)


async def test_a_model_that_stays_away_fails_the_run_with_its_error() -> None:
    model = SaysInTurn(ModelUnavailable("nobody at http://x"))
    _, events = await run(model)
    end = finished(events)
    assert (end["status"], end["stop"]["hook"]) == ("failed", "error_policy")
    assert end["stop"]["reason"] == "3 attempts failed; the last one: nobody at http://x"
    assert len(model.requests) == 3


async def test_what_no_driver_should_raise_is_shown_to_the_model_and_the_run_goes_on() -> None:
    model = SaysInTurn(ValueError("odd"), says("recovered"))
    final, events = await run(model)
    assert finished(events)["status"] == "completed"
    assert [payload["error"] for payload in events.of("model_failed")] == ["odd"]
    assert model.requests[1].messages[-1].content == "[the last step failed: odd]"
    assert final.steps == 2


async def test_what_fails_in_every_step_ends_the_run_with_its_error() -> None:
    final, events = await run(SaysInTurn(ValueError("odd")))
    assert final.steps == 4
    assert finished(events)["stop"]["reason"] == "4 steps failed in a row, 3 may; the last time: odd"


async def test_what_a_hook_says_before_a_step_is_seen_by_its_inference() -> None:
    class Nudges(Hook):
        async def before_step(self, state: AgentState) -> AgentState:
            return state.say(Message(role="user", content=f"nudge {state.steps}"))

    model = SaysInTurn(says("done"))
    await run(model, Nudges())
    assert [message.content for message in model.requests[0].messages] == ["do it", "nudge 0"]


async def test_a_refusal_is_not_asked_again() -> None:
    model = SaysInTurn(ModelRefused("bad key"))
    _, events = await run(model)
    assert (finished(events)["status"], finished(events)["stop"]["reason"]) == ("failed", "bad key")
    assert len(model.requests) == 1


async def test_a_closed_hook_that_fails_before_inference_ends_the_run_and_on_error_is_called() -> None:
    reported: list[str] = []

    class Crash(Hook):
        name = "crash"

        async def before_inference(self, state: AgentState) -> AgentState:
            raise RuntimeError("boom")

        async def on_error(self, state: AgentState) -> AgentState:
            reported.append(str(state.current.errors[-1]))
            return state

    model = SaysInTurn(says("hi"))
    _, events = await run(model, Crash())
    end = finished(events)
    assert (end["status"], end["stop"]["hook"], end["stop"]["rule"]) == ("failed", "crash", "hook_failed")
    assert model.requests == []
    assert len(reported) == 1


async def test_a_stop_between_call_and_tool_leaves_no_tool_call_unanswered() -> None:
    class StopThere(Hook):
        async def after_inference(self, state: AgentState) -> AgentState:
            return state.forbid_continuation("stopper", "there", "enough")

    final, _ = await run(SaysInTurn(says("", call("t", "a"), call("t", "b"))), StopThere())
    asked = [call_.id for message in final.messages for call_ in message.tool_calls]
    assert [message.tool_call_id for message in final.messages if message.role == "tool"] == asked
    assert len(set(asked)) == 2


async def test_cancelling_ends_tool_calls_runs_execution_end_reports_it_and_is_raised() -> None:
    ended: list[AgentState] = []

    class End(Hook):
        async def execution_end(self, state: AgentState) -> AgentState:
            await asyncio.sleep(0)
            ended.append(state)
            return state

    shell, events = FakeShell(hangs=True), Events()
    agent = Agent(
        model=SaysInTurn(says("", call("execute", command="sleep 99"))),
        capabilities=(FLOW, bash(shell)),
        hooks=(End(), allowing()),
    )
    task = asyncio.ensure_future(agent.run(state(), events))
    async with asyncio.timeout(5):
        while not shell.commands:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shell.killed == 1
    end = finished(events)
    assert (end["status"], end["stop"]["rule"]) == ("cancelled", "cancelled")
    (last,) = ended
    assert last.stop is not None
    assert [message.role for message in last.messages] == ["user", "assistant", "tool"]


async def test_endpoint_call_ids_that_repeat_are_distinguished() -> None:
    final, events = await run(SaysInTurn(says("", call("t", "same"), call("t", "same")), says("hi")))
    ids = [payload["call_id"] for payload in events.of("tool_call_finished")]
    assert len(set(ids)) == 2
    assert [message.tool_call_id for message in final.messages if message.role == "tool"] == ids


async def test_with_twelve_hooks_step_300_costs_as_much_as_step_1() -> None:
    class Touch(Hook):
        """Does a little at every point of a step."""

        async def before_step(self, state: AgentState) -> AgentState:
            return state.with_metadata(self.name, state.steps)

        before_inference = before_step
        after_inference = before_step
        after_step = before_step
        should_continue = before_step

    stamps: list[float] = []

    def stamp(event: Any) -> None:
        if event.type == "step_started":
            stamps.append(time.process_time())

    hooks = [Touch() for _ in range(12)]
    for number, hook in enumerate(hooks):
        hook.name = f"h{number}"
    agent = Agent(
        model=SaysInTurn(says("", call("t"))),
        capabilities=(limits(steps=300, output_tokens=10**9, tool_calls=10**9, repeated_calls=10**9), FLOW, TOOLS),
        hooks=hooks,
    )
    await agent.run(state(), stamp)
    steps_s = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    first, last = sorted(steps_s[:100])[50], sorted(steps_s[-100:])[50]
    print(f"median CPU per step: first hundred {first * 1000:.3f} ms, last hundred {last * 1000:.3f} ms")
    assert last < 3 * first
