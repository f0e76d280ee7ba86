"""Each limit: where it stops a run, that it names itself and its numbers, and that nothing gets around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import JsonValue

from agent.agent import Agent
from agent.cancellation import TimeLeft
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelUnavailable
from agent.hooks.hook import Hook
from agent.loop import Host
from agent.messages import Evicted, ToolResult, Usage
from agent.state import AgentState, ModelResponse, Spent
from agent.tools.tool import Capability, ToolContext
from tests.unit.agent.fakes import Events, PolicyThat, SaysInTurn, allowing, call, done, says, state, tool

TOOLS = Capability("tools", tools=(tool("t", done), tool("other", done)))
MORE = says("", call("t"))


async def run(
    model: SaysInTurn, *hooks: Hook, given: AgentState | None = None, tools: Capability = TOOLS, **bounds: Any
) -> tuple[AgentState, Events]:
    events = Events()
    hooks = hooks if any(hook.innermost for hook in hooks) else (*hooks, allowing())
    agent = Agent(model=model, capabilities=(limits(**bounds), tools), hooks=hooks)
    return await agent.run(given or state(), events), events


def stop(final: AgentState) -> tuple[str, str, str]:
    assert final.stop is not None
    return final.stop.hook, final.stop.rule, final.stop.reason


def costs(usd: float) -> ModelResponse:
    return MORE.model_copy(update={"usage": Usage(input_tokens=1, output_tokens=1, cost_usd=usd)})


@pytest.mark.parametrize(
    "bounds, model, expected, steps",
    [
        ({"steps": 3}, MORE, ("steps_limit", "max_steps", "3 steps were taken, the limit is 3"), 3),
        (
            {"output_tokens": 2},
            MORE,
            ("token_usage_limit", "max_output_tokens", "2 output tokens were used, the limit is 2"),
            2,
        ),
        (
            {"tool_calls": 3},
            says("", call("t"), call("other")),
            ("tool_call_limit", "max_tool_calls", "4 tool calls were made, the limit is 3"),
            2,
        ),
        (
            {"cost_usd": 0.5},
            costs(0.25),
            ("cost_limit", "max_cost_usd", "the model has cost 0.5 USD, the limit is 0.5 USD"),
            2,
        ),
        (
            {"repeated_calls": 4},
            MORE,
            (
                "repeated_calls",
                "max_repeated_calls",
                "t was called 4 times in a row with the same arguments and the same result, the limit is 4",
            ),
            4,
        ),
    ],
)
async def test_each_limit_stops_the_run_and_names_hook_rule_and_numbers(
    bounds: dict[str, Any], model: ModelResponse, expected: tuple[str, str, str], steps: int
) -> None:
    asked = SaysInTurn(model)
    final, events = await run(asked, **bounds)
    assert stop(final) == expected
    assert (final.steps, len(asked.requests)) == (steps, steps)
    assert events[-1].payload["status"] == "stopped"


@pytest.mark.parametrize(
    "others, rule",
    [
        (Spent(steps=25), "max_steps"),
        (Spent(tool_calls=200), "max_tool_calls"),
        (Spent(usage=Usage(output_tokens=32_768)), "max_output_tokens"),
        (Spent(usage=Usage(cost_usd=1.0)), "max_cost_usd"),
    ],
)
async def test_what_relatives_spent_counts(others: Spent, rule: str) -> None:
    model = SaysInTurn(says("hi"))
    final, _ = await run(model, given=state(others=others), cost_usd=1.0)
    assert stop(final)[1] == rule
    assert model.requests == []


async def test_without_a_limit_cost_is_not_limited() -> None:
    final, _ = await run(SaysInTurn(costs(1e6), says("done")))
    assert stop(final)[0] == "finish_reason"


def test_all_limits_are_mandatory() -> None:
    hooks = limits(cost_usd=1.0).hooks
    assert {hook.name for hook in hooks if hook.mandatory} == {
        "steps_limit",
        "token_usage_limit",
        "execution_time_limit",
        "tool_call_limit",
        "cost_limit",
        "repeated_calls",
        "forced_continuations_cap",
    }
    assert all(hook.mandatory for hook in hooks)


class StoresThenDies(Hook):
    """Stores the state before the second step, as the gateway does, and ends this process's part there."""

    def __init__(self) -> None:
        self.stored = ""

    async def before_step(self, state: AgentState) -> AgentState:
        if state.steps == 1 and not self.stored:
            self.stored = state.model_dump_json()
            return state.forbid_continuation("test", "dies", "the process ends")
        return state


class Clock:
    """Tells the time; the model's answers take a while."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class TakesTime(SaysInTurn):
    def __init__(self, clock: Clock, takes_s: float, *responses: ModelResponse) -> None:
        super().__init__(*responses)
        self.clock = clock
        self.takes_s = takes_s

    async def infer(self, *asked: Any) -> ModelResponse:
        self.clock.now_s += self.takes_s
        return await super().infer(*asked)


async def test_time_between_two_processes_does_not_count_and_time_worked_in_both_does() -> None:
    async def go(clock: Clock, given: AgentState, limit_s: float, *hooks: Hook) -> AgentState:
        model = TakesTime(clock, 200.0, MORE, MORE, says("done"))
        capabilities = (limits(execution_time_s=limit_s), TOOLS)
        return await Agent(
            model=model, capabilities=capabilities, hooks=(*hooks, allowing()), host=Host(clock=clock)
        ).run(given)

    storing = StoresThenDies()
    first = await go(Clock(0.0), state(), 300.0, storing)
    assert stop(first)[1] == "dies"
    stored = AgentState.model_validate_json(storing.stored)
    assert stored.active_s == 200.0

    much_later = 1e9
    resumed = await go(Clock(much_later), stored, 300.0)
    assert resumed.steps == 2
    assert stop(resumed) == ("execution_time_limit", "max_seconds", "the run worked for 400.0 s, the limit is 300 s")
    assert stop(await go(Clock(much_later), stored, 1000.0))[0] == "finish_reason"


# --- within a step ---


async def test_the_calls_that_one_response_has_past_the_limit_do_not_run() -> None:
    ran: list[str] = []

    async def runs(_: object, context: ToolContext) -> ToolResult:
        ran.append(context.call_id)
        return ToolResult(b"ran")

    calls = [call("t", n=n) for n in range(5)]
    model = SaysInTurn(says("", call("t")), says("", *calls))
    final, events = await run(model, tools=Capability("tools", tools=(tool("t", runs),)), tool_calls=4)
    assert len(ran) == 4
    assert stop(final) == ("tool_call_limit", "max_tool_calls", "6 tool calls were made, the limit is 4")
    verdicts = [(payload["verdict"], payload["rule"], payload["reason"]) for payload in events.of("hook_verdict")]
    assert verdicts[4:] == [
        ("deny", "max_tool_calls", f"{made} tool calls were made, the limit is 4") for made in (4, 5)
    ]
    assert [text.split(":")[0] for text in contents(final)[4:]] == [
        "Blocked by rule max_tool_calls of tool_call_limit"
    ] * 2


class Hangs:
    """A tool or a model that waits for ever; when it is ended, the clock says `at_s` and what was given follows."""

    def __init__(self, clock: Clock, at_s: float, then: Exception | ModelResponse | None = None) -> None:
        self.clock, self.at_s, self.then = clock, at_s, then
        self.name = "hangs"
        self.begun: list[str] = []
        self.ended = 0

    async def run(self, _: object, context: ToolContext) -> ToolResult:
        self.begun.append(context.call_id)
        await self.hang()
        raise AssertionError

    async def infer(self, *_: object) -> ModelResponse:
        self.begun.append("infer")
        return await self.hang()

    async def hang(self) -> ModelResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended += 1
            self.clock.now_s = self.at_s
            if isinstance(self.then, Exception):
                raise self.then from None
            if self.then is None:
                raise
        assert isinstance(self.then, ModelResponse)
        return self.then


class SeesResults(Hook):
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    async def after_tool_use(self, state: AgentState) -> AgentState:
        assert state.current.tool.result is not None
        self.outcomes.append(state.current.tool.result.outcome)
        return state


OVER = ("execution_time_limit", "max_seconds", "the run worked for 15.0 s, the limit is 0.01 s")


@pytest.mark.parametrize("calls, concurrency, begun", [(1, 8, 1), (6, 8, 6), (6, 2, 2)])
async def test_the_tool_calls_in_flight_end_when_the_time_is_over_and_those_that_wait_do_not_begin(
    calls: int, concurrency: int, begun: int
) -> None:
    # By the agent's clock all the time is left until the first tool is cancelled, which a real timer does.
    clock = Clock(0.0)
    hangs, sees, events = Hangs(clock, 15.0), SeesResults(), Events()
    agent = Agent(
        model=SaysInTurn(says("", *[call("t")] * calls)),
        capabilities=(limits(execution_time_s=0.01, steps=1), Capability("tools", tools=(tool("t", hangs.run),))),
        hooks=(sees, allowing()),
        host=Host(clock=clock, concurrency=concurrency),
    )
    final = await agent.run(state(), events)
    assert stop(final) == OVER
    assert events[-1].payload["status"] == "stopped"
    assert (len(hangs.begun), hangs.ended) == (begun, begun)
    assert sees.outcomes == ["cancelled"] * calls
    assert contents(final) == ["the call was cancelled: the run's time is over"] * calls
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("then", [None, ModelUnavailable("the connection was closed"), RuntimeError("not now")])
async def test_the_model_is_not_waited_for_when_the_time_is_over(then: Exception | None) -> None:
    clock = Clock(0.0)
    model, events = Hangs(clock, 15.0, then), Events()
    capabilities = (flow(retries=0), limits(execution_time_s=0.01, steps=1))
    final = await Agent(model=model, capabilities=capabilities, host=Host(clock=clock)).run(state(), events)
    assert stop(final) == OVER
    assert events[-1].payload["status"] == "stopped"
    assert (model.begun, model.ended) == (["infer"], 1)
    assert [event.type for event in events][-2:] == ["step_finished", "run_finished"]
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_an_answer_that_came_all_the_same_counts() -> None:
    clock = Clock(0.0)
    capabilities = (limits(execution_time_s=0.01),)
    final = await Agent(model=Hangs(clock, 15.0, says("late")), capabilities=capabilities, host=Host(clock=clock)).run(
        state()
    )
    assert final.messages[-1].content == "late"
    assert stop(final)[0] == "finish_reason"


async def test_a_run_that_is_cancelled_is_not_cancelled_again_when_its_time_is_over() -> None:
    cleaned_up: list[int] = []

    async def works() -> None:
        async with TimeLeft(0.0) as time:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for turn in range(5):  # the timer is long due
                    await asyncio.sleep(0)
                    cleaned_up.append(turn)
                assert not time.over
                raise
        raise AssertionError

    task = asyncio.create_task(works())
    await asyncio.wait({task})
    assert task.cancelled()
    assert cleaned_up == [0, 1, 2, 3, 4]


async def test_who_cancels_a_task_whose_time_is_over_ends_it_there() -> None:
    async def works() -> None:
        async with TimeLeft(0.0) as time:
            task = asyncio.current_task()
            assert task is not None
            try:
                await asyncio.Event().wait()
            finally:
                assert time.over
                task.cancel()
        raise AssertionError

    task = asyncio.create_task(works())
    await asyncio.wait({task})
    assert task.cancelled()


async def test_who_cancels_a_run_whose_time_is_over_is_heeded() -> None:
    clock = Clock(0.0)
    events = Events()
    task: asyncio.Task[AgentState]

    class IsCancelledMeanwhile(Hangs):
        async def hang(self) -> ModelResponse:
            try:
                return await super().hang()
            finally:
                task.cancel()

    capabilities = (limits(execution_time_s=0.01),)
    agent = Agent(model=IsCancelledMeanwhile(clock, 15.0), capabilities=capabilities, host=Host(clock=clock))
    task = asyncio.create_task(agent.run(state(), events))
    await asyncio.wait({task})
    assert task.cancelled()
    assert events[-1].payload["status"] == "cancelled"


# --- repeated calls ---


def contents(final: AgentState) -> list[str]:
    return [message.content for message in final.messages if message.role == "tool"]


def giving(*results: ToolResult) -> Capability:
    left = list(results)

    async def gives(*_: object) -> ToolResult:
        return left.pop(0) if len(left) > 1 else left[0]

    return Capability("tools", tools=(tool("t", gives),))


async def test_the_model_reads_that_it_repeats_itself_before_the_run_is_stopped() -> None:
    final, events = await run(SaysInTurn(MORE))
    assert final.steps == 5
    said = contents(final)
    assert said[:2] == ["done", "done"]
    assert [line.split("\n")[0] for line in said] == ["done"] * 5
    assert "[3 times in a row" in said[2]
    assert "after 5 times the run is stopped" in said[2]
    assert {payload["content"] for payload in events.of("tool_call_finished")} == {"done"}


async def test_a_note_that_is_there_already_stays() -> None:
    final, _ = await run(SaysInTurn(MORE), tools=giving(ToolResult(b"x", note="[cut]")))
    assert contents(final)[2].startswith("x\n[cut]\n[3 times in a row")


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param([call("t", path="a"), call("t", path="b")], id="other arguments"),
        pytest.param([call("t"), call("other")], id="another tool"),
    ],
)
async def test_calls_that_differ_are_not_repeated(turns: list[Any]) -> None:
    final, _ = await run(SaysInTurn(*[says("", one) for one in turns * 5], says("done")))
    assert stop(final)[0] == "finish_reason"


@pytest.mark.parametrize(
    "result",
    [
        lambda n: ToolResult(f"running for {n} s".encode()),
        lambda n: ToolResult(b"", exit_code=n),
        lambda n: ToolResult(b"", outcome="exited" if n % 2 else "timed_out"),
        lambda n: ToolResult(b"head", evicted=evicted(str(n))),
    ],
)
async def test_a_tool_that_waits_or_checks_may_be_called_as_long_as_its_result_changes(
    result: Callable[[int], ToolResult],
) -> None:
    tools = giving(*[result(n) for n in range(10)])
    final, _ = await run(SaysInTurn(*[MORE] * 10, says("done")), tools=tools)
    assert stop(final)[0] == "finish_reason"
    assert "in a row" not in str(contents(final))


def evicted(sha256: str, path: str = "/tmp/1") -> Evicted:
    return Evicted(path=path, size_bytes=1, lines=1, sha256=sha256, incomplete=False)


async def test_the_same_bytes_evicted_into_another_file_each_time_are_the_same_result() -> None:
    results = [ToolResult(f"see {n}".encode(), evicted=evicted("same", f"/tmp/{n}")) for n in range(10)]
    final, _ = await run(SaysInTurn(MORE), tools=giving(*results))
    assert stop(final)[1] == "max_repeated_calls"


async def test_calls_of_one_step_count_one_by_one_in_call_order() -> None:
    final, _ = await run(SaysInTurn(says("", *[call("t")] * 3), says("", call("t"), call("t"), call("other"))))
    assert final.steps == 2
    assert stop(final)[1] == "max_repeated_calls"
    assert len(contents(final)) == 6


async def test_blocked_calls_and_arguments_that_are_no_json_are_repeated_too() -> None:
    blocks = PolicyThat(lambda given: given.block("policy", "no", "never"))
    final, _ = await run(SaysInTurn(MORE), blocks)
    assert stop(final)[1] == "max_repeated_calls"
    broken = call("t").model_copy(update={"arguments": None, "raw_arguments": "{nope"})
    final, _ = await run(SaysInTurn(says("", broken)))
    assert stop(final)[1] == "max_repeated_calls"


async def test_the_final_arguments_count_not_those_the_model_wrote() -> None:
    class Numbers(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            arguments: dict[str, JsonValue] = {"n": state.steps}
            return state.with_arguments(arguments)

    final, _ = await run(SaysInTurn(*[MORE] * 10, says("done")), Numbers())
    assert stop(final)[0] == "finish_reason"


async def test_hooks_that_rewrite_results_do_not_hide_a_repetition() -> None:
    class Stamps(Hook):
        priority = -1

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.with_result(ToolResult(f"at step {state.steps}".encode()))

    final, _ = await run(SaysInTurn(MORE), Stamps())
    assert stop(final)[1] == "max_repeated_calls"


async def test_the_count_survives_a_restart_and_takes_no_room() -> None:
    given = state()
    for expected in (1, 2, 3, 4):
        given, _ = await run(SaysInTurn(MORE), given=given, steps=expected, repeated_calls=4)
        given = AgentState.model_validate_json(given.model_dump_json())
    assert stop(given)[1] == "max_repeated_calls"
    assert len(str(given.notes)) < 200


@pytest.mark.parametrize("note", [None, 7, {"digest": 1}, {"count": "x"}])
async def test_a_damaged_note_does_no_harm(note: JsonValue) -> None:
    final, _ = await run(SaysInTurn(MORE, says("done")), given=state(notes={"limits.last_call": note}))
    assert stop(final)[0] == "finish_reason"
