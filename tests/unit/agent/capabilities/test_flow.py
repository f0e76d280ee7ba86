"""What makes a run go on or end: tool calls, the finish reason, errors of the model and of tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.flow import ErrorPolicy, flow
from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest
from agent.loop import Host
from agent.messages import ToolResult
from agent.models.model import OnDelta
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model_server import Fault, ScriptedModelServer, Turn
from agent.models.settings import Connection
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability
from tests.unit.agent.fakes import Events, PolicyThat, SaysInTurn, allowing, call, done, says, state, tool

AWAY = ModelUnavailable("nobody at http://x")


async def fails(*_: object) -> ToolResult:
    return ToolResult.error("no such thing", outcome="timed_out")


TOOLS = Capability("tools", tools=(tool("t", done), tool("bad", fails)))


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


async def run(model: Any, *hooks: Hook, clock: Clock | None = None, **settings: Any) -> tuple[AgentState, Events]:
    events, clock = Events(), clock or Clock()
    hooks = hooks if any(hook.innermost for hook in hooks) else (*hooks, allowing())
    agent = Agent(
        model=model, capabilities=(flow(sleep=clock.sleep, **settings), TOOLS), hooks=hooks, host=Host(clock=clock)
    )
    return await agent.run(state(), events), events


def end(events: Events) -> tuple[Any, Any, Any, str]:
    payload = events[-1].payload
    stop = payload["stop"]
    assert isinstance(stop, dict)
    return payload["status"], stop["hook"], stop["rule"], str(stop["reason"])


async def test_a_response_with_tool_calls_goes_on_and_one_without_ends_with_its_finish_reason() -> None:
    _, events = await run(SaysInTurn(says("", call("t")), says("half", finish_reason="length")))
    assert events[-1].payload["steps"] == 2
    assert end(events)[:3] == ("stopped", "finish_reason", "model_cut")


CUT_ANSWERS = [("length", "model_cut"), ("content_filter", "model_cut"), ("refusal", "model_refused")]


@pytest.mark.parametrize("finish_reason, rule", CUT_ANSWERS)
async def test_an_answer_that_is_not_whole_stops_the_run_unless_the_settings_take_it(
    finish_reason: str, rule: str
) -> None:
    half = says('<tool_call>{"name": "ls", "argum', finish_reason=finish_reason)
    final, events = await run(SaysInTurn(half))
    assert end(events)[:3] == ("stopped", "finish_reason", rule)
    assert f"(finish reason {finish_reason})" in end(events)[3]
    assert events[-1].payload["answer"] == final.messages[-1].content == half.message.content
    _, events = await run(SaysInTurn(half), on_cut_answer="accept")
    assert end(events)[:3] == ("completed", "finish_reason", finish_reason)


async def test_a_cut_answer_that_a_hook_sends_back_is_not_the_last() -> None:
    class SendsBack(Hook):
        name = "sends_back"

        async def after_step(self, state: AgentState) -> AgentState:
            response = state.current.response
            if response is None or response.finish_reason == "stop":
                return state
            return state.request_continuation(self.name, "again", "it is not whole")

    final, events = await run(SaysInTurn(says("ha", finish_reason="length"), says("whole")), SendsBack())
    assert end(events)[:2] == ("completed", "finish_reason")
    assert final.steps == 2


async def test_a_cut_response_with_whole_tool_calls_goes_on() -> None:
    cut = says("", call("t")).with_(finish_reason="length")
    _, events = await run(SaysInTurn(cut, says("done")))
    assert end(events)[0] == "completed"


async def test_a_model_that_is_away_is_asked_again_within_the_step_with_growing_waits() -> None:
    clock = Clock()
    model = SaysInTurn(AWAY, ModelNonsense("[]"), AWAY, says("back"))
    final, events = await run(model, clock=clock, retries=3, backoff_s=2.0)
    assert clock.slept == [2.0, 8.0, 32.0]
    assert (final.steps, events[-1].payload["answer"]) == (1, "back")
    assert all(request == model.requests[0] for request in model.requests)
    assert [failed["error"] for failed in events.of("model_failed")] == [str(AWAY), "[]", str(AWAY)]
    retries = events.of("model_retrying")
    assert [(one["attempt"], one["attempts"], one["wait_s"]) for one in retries] == [
        (2, 4, 2.0),
        (3, 4, 8.0),
        (4, 4, 32.0),
    ]
    told = [event.type for event in events if event.type in ("model_failed", "model_retrying", "model_finished")]
    assert told == ["model_failed", "model_retrying"] * 3 + ["model_finished"]
    assert final.model_s == sum(clock.slept)
    assert final.hooks_s == 0


@pytest.mark.parametrize(
    "asked_s, slept", [(None, [0.5, 2.0]), (1.0, [1.0, 2.0]), (40.0, [40.0, 40.0]), (60.0, [60.0, 60.0])]
)
async def test_the_endpoint_is_not_asked_sooner_than_it_wants(asked_s: float | None, slept: list[float]) -> None:
    clock = Clock()
    await run(SaysInTurn(ModelUnavailable("busy", retry_after_s=asked_s)), clock=clock)
    assert clock.slept == slept


async def test_no_wait_is_longer_than_a_minute_however_many_attempts_there_were() -> None:
    clock = Clock()
    await run(SaysInTurn(AWAY), clock=clock, retries=2000, backoff_s=10.0)
    assert clock.slept[:4] == [10.0, 40.0, 60.0, 60.0]
    assert len(clock.slept) == 2000


async def test_an_endpoint_that_wants_to_be_left_alone_for_long_is_not_waited_for() -> None:
    clock = Clock()
    model = SaysInTurn(AWAY, ModelUnavailable("quota", retry_after_s=120.0), says("never"))
    _, events = await run(model, clock=clock)
    assert clock.slept == [0.5]
    status, _, rule, reason = end(events)
    assert (status, rule) == ("failed", "ModelUnavailable")
    assert reason == "2 attempts failed; the last one: quota; the endpoint asks for 120 s, which is too long to wait"


async def test_a_model_that_stays_away_ends_the_run_with_the_number_of_attempts() -> None:
    model = SaysInTurn(AWAY)
    _, events = await run(model, retries=4)
    assert len(model.requests) == 5
    assert end(events)[:3] == ("failed", "error_policy", "ModelUnavailable")
    assert end(events)[3] == "5 attempts failed; the last one: nobody at http://x"


async def test_the_same_error_object_says_the_same_each_time() -> None:
    for _ in range(2):
        _, events = await run(SaysInTurn(AWAY), retries=1)
        assert end(events)[3] == "2 attempts failed; the last one: nobody at http://x"
    assert str(AWAY) == "nobody at http://x"


async def test_an_error_of_a_class_of_ones_own_keeps_its_class() -> None:
    class Overheated(ModelUnavailable):
        def __init__(self, *, degrees: int) -> None:
            super().__init__(f"at {degrees} degrees", retry_after_s=1.0)
            self.degrees = degrees

    seen: list[Exception] = []

    class Sees(Hook):
        async def on_error(self, state: AgentState) -> AgentState:
            seen.extend(state.current.errors)
            return state

    _, events = await run(SaysInTurn(Overheated(degrees=90)), Sees())
    (error,) = seen
    assert isinstance(error, Overheated)
    assert (error.degrees, error.retry_after_s) == (90, 1.0)
    assert end(events)[2:] == ("Overheated", "3 attempts failed; the last one: at 90 degrees")


async def test_a_refusal_is_final_at_once() -> None:
    clock, model = Clock(), SaysInTurn(ModelRefused("bad key"))
    _, events = await run(model, clock=clock)
    assert end(events) == ("failed", "error_policy", "ModelRefused", "bad key")
    assert events.of("model_retrying") == []
    assert (len(model.requests), clock.slept) == (1, [])


async def test_a_partial_answer_leaves_nothing_behind_in_the_thread() -> None:
    clock, events = Clock(), Events()
    async with ScriptedModelServer([Turn(say="whole", fault=Fault("drop"))]) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="k", connection=Connection(idle_timeout_s=5))
        agent = Agent(model=model, capabilities=(flow(sleep=clock.sleep),), hooks=(allowing(),))
        final = await agent.run(state(), events)
        await model.close()
    assert [message.content for message in final.messages] == ["do it", "whole"]
    kinds = [event.type for event in events if event.type.startswith("model_")]
    assert kinds[:2] == ["model_delta", "model_failed"]
    assert kinds[-1] == "model_finished"


async def test_the_endpoints_retry_after_reaches_the_wait() -> None:
    clock = Clock()
    fault = Fault("status", status=429, headers={"Retry-After": "17"})
    async with ScriptedModelServer([Turn(say="hi", fault=fault)]) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="k", connection=Connection(idle_timeout_s=5))
        _, events = await run(model, clock=clock)
        await model.close()
    assert clock.slept == [17.0]
    assert end(events)[0] == "completed"


async def test_a_run_is_cancelled_in_the_middle_of_a_wait() -> None:
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    events, model = Events(), SaysInTurn(AWAY)
    task = asyncio.ensure_future(Agent(model=model, capabilities=(flow(sleep=sleep),)).run(state(), events))
    async with asyncio.timeout(5):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert end(events)[0] == "cancelled"
    assert len(model.requests) == 1


async def test_continue_asks_again_in_the_next_step_three_steps_in_a_row_at_most() -> None:
    model = SaysInTurn(AWAY)
    final, events = await run(model, retries=1, on_model_error="continue")
    assert (final.steps, len(model.requests)) == (4, 8)
    status, _, rule, reason = end(events)
    assert (status, rule) == ("failed", "ModelUnavailable")
    assert "4 steps failed in a row, 3 may; the last time: 2 attempts failed" in reason


async def test_an_answer_in_between_starts_the_count_anew() -> None:
    away = [AWAY, AWAY, AWAY]
    model = SaysInTurn(*away, says("", call("t")), *away, says("done"))
    final, events = await run(model, retries=0, on_model_error="continue")
    assert end(events)[0] == "completed"
    assert final.steps == 8
    assert final.notes["flow.model_errors"] == 0


async def test_the_count_survives_a_restart() -> None:
    stored = state(notes={"flow.model_errors": 3}, started=True)
    stored = AgentState.model_validate_json(stored.model_dump_json())
    agent = Agent(model=SaysInTurn(AWAY), capabilities=(flow(retries=0, on_model_error="continue"),))
    final = await agent.run(stored)
    assert final.steps == 1
    assert final.stop is not None
    assert "4 steps failed in a row" in final.stop.reason


class Shortens(Hook):
    """Stands for summarization: makes the messages shorter and asks for another step."""

    name = "shortens"
    priority = 100

    async def on_error(self, state: AgentState) -> AgentState:
        if isinstance(state.current.errors[-1], ModelError) and len(state.messages) == 1:
            state = state.with_(messages=(state.messages[0], state.messages[0]))
            return state.request_continuation(self.name, "shorter", "the messages are shorter now")
        return state


async def test_messages_that_were_made_shorter_are_sent_again() -> None:
    model = SaysInTurn(ContextLengthExceeded("too long"), says("now it fits"))
    final, events = await run(model, Shortens())
    assert events[-1].payload["answer"] == "now it fits"
    assert final.steps == 2
    assert "flow.model_errors" not in final.notes


async def test_messages_that_stay_too_long_end_the_run() -> None:
    model = SaysInTurn(ContextLengthExceeded("too long"))
    _, events = await run(model, Shortens())
    assert end(events)[:3] == ("failed", "error_policy", "ContextLengthExceeded")
    assert len(model.requests) == 2


async def test_a_request_of_another_hook_keeps_a_run_with_any_error_going_for_three_steps() -> None:
    class Asks(Hook):
        async def on_error(self, state: AgentState) -> AgentState:
            return state.request_continuation("asks", "again", "again")

    model = SaysInTurn(ModelRefused("bad key"))
    _, events = await run(model, Asks())
    assert end(events)[:3] == ("failed", "error_policy", "ModelRefused")
    assert len(model.requests) == 4


async def test_a_request_at_on_error_wins_over_the_default_that_lets_the_run_end() -> None:
    model = SaysInTurn(ModelRefused("busy with something"), says("back"))
    final, events = await run(model, Shortens())
    assert end(events)[0] == "completed"
    assert final.messages[-1].content == "back"


async def test_an_error_of_another_kind_is_shown_to_the_model() -> None:
    failed = state().with_current(errors=(ValueError("odd"),))
    outcome = (await ErrorPolicy().on_error(failed)).current.continuation
    assert outcome is not None
    assert (outcome.rule, outcome.reason) == ("show_error", "the model is shown the error: odd")


async def test_the_failure_of_a_closed_hook_keeps_its_own_reason() -> None:
    class Crash(Hook):
        name = "crash"

        async def around_inference(self, request: InferenceRequest, next_: Any) -> ModelResponse:
            raise RuntimeError("boom")

    _, events = await run(SaysInTurn(says("hi")), Crash(), on_model_error="continue")
    assert end(events)[:3] == ("failed", "crash", "hook_failed")


def blocking(name: str) -> PolicyThat:
    def judge(given: AgentState) -> AgentState:
        if given.current.tool.call.name == name:
            return given.block("guard", "no_" + name, "never")
        return given.proceed("guard", "else", "fine")

    return PolicyThat(judge)


CALLS = says("", call("t"), call("bad"))


@pytest.mark.parametrize(
    "settings, policy, stop",
    [
        ({}, allowing(), "finish_reason"),
        ({}, blocking("t"), "finish_reason"),
        ({"on_tool_error": "stop"}, allowing(), "tool_error"),
        ({"on_tool_error": "stop"}, blocking("bad"), "finish_reason"),
        ({"on_tool_blocked": "stop"}, allowing(), "finish_reason"),
        ({"on_tool_blocked": "stop"}, blocking("t"), "tool_blocked"),
    ],
)
async def test_a_failed_or_blocked_tool_call_ends_the_run_only_where_that_is_asked(
    settings: dict[str, Any], policy: PolicyThat, stop: str
) -> None:
    final, events = await run(SaysInTurn(CALLS, says("done")), policy, **settings)
    status, hook, rule, reason = end(events)
    if stop == "finish_reason":
        assert (status, hook) == ("completed", stop)
        return
    assert (status, hook, rule, final.steps) == ("stopped", "error_policy", stop, 1)
    reported = {
        "tool_error": "tool bad ended with outcome timed_out: no such thing",
        "tool_blocked": "tool t was blocked by rule no_t of guard: never",
    }
    assert reason == reported[stop]
    assert [message.role for message in final.messages] == ["user", "assistant", "tool", "tool"]


async def test_what_a_failed_tool_said_does_not_flood_the_reason() -> None:
    async def shouts(*_: object) -> ToolResult:
        return ToolResult.error("x" * 100_000)

    agent = Agent(
        model=SaysInTurn(says("", call("loud"))),
        capabilities=(flow(on_tool_error="stop"), Capability("tools", tools=(tool("loud", shouts),))),
    )
    final = await agent.run(state())
    assert final.stop is not None
    assert final.stop.rule == "tool_error"
    assert len(final.stop.reason) < 300


async def test_a_failed_tool_call_is_never_made_again_by_itself() -> None:
    made: list[str] = []

    async def fails_once(_: Any, context: Any) -> ToolResult:
        made.append(context.call_id)
        return ToolResult.error("failed")

    agent = Agent(
        model=SaysInTurn(says("", call("f")), says("done")),
        capabilities=(flow(retries=5), Capability("tools", tools=(tool("f", fails_once),))),
    )
    await agent.run(state())
    assert len(made) == 1


async def test_one_policy_serves_many_runs_at_once() -> None:
    class FailsTwice:
        """Two attempts fail for each run, the runs taking turns."""

        name = "fails-twice"

        def __init__(self) -> None:
            self.asked: dict[str, int] = {}

        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            who = request.system_prompt
            self.asked[who] = self.asked.get(who, 0) + 1
            await asyncio.sleep(0)
            if self.asked[who] < 3:
                raise ModelUnavailable("away")
            return says(who)

    model, clock = FailsTwice(), Clock()
    agent = Agent(model=model, capabilities=(flow(sleep=clock.sleep),))
    finals = await asyncio.gather(*(agent.run(state(system_prompt=f"p{n}")) for n in range(5)))
    assert [final.messages[-1].content for final in finals] == [f"p{n}" for n in range(5)]
    assert sorted(clock.slept) == [0.5] * 5 + [2.0] * 5
