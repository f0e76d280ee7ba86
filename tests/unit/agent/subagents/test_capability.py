"""Subagents: what they inherit, what they may spend, how they end, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.capabilities.metadata import metadata
from agent.capabilities.todos import todos
from agent.capabilities.tool_registry import tool_registry
from agent.errors import ModelRefused, ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest
from agent.loop import Host
from agent.messages import Message, ToolCall, ToolResult, Usage
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse, Spent
from agent.subagents.capability import Subagent, subagents
from agent.subagents.family import Families, Family
from agent.subagents.subagent import ParentTools
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, Events, PolicyThat, SaysInTurn, allowing, call, done, ran, says, tool

Turn = ModelResponse | Exception | Callable[[InferenceRequest], Awaitable[ModelResponse]]

WORKER = Subagent("works", "You work.")


class Keyed:
    """A model whose turns are chosen by the conversation: the first user message, and how often it has answered."""

    name = "keyed"

    def __init__(self, turns: Mapping[str, Sequence[Turn]]) -> None:
        self.turns = turns
        self.requests: list[InferenceRequest] = []
        self.used = Usage()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.requests.append(request)
        turns = self.turns[request.messages[0].content]
        answered = sum(message.role == "assistant" for message in request.messages)
        turn = turns[min(answered, len(turns) - 1)]
        if isinstance(turn, Exception):
            raise turn
        response = turn if isinstance(turn, ModelResponse) else await turn(request)
        self.used += response.usage
        return response

    def asked(self, task: str) -> list[InferenceRequest]:
        """Return the requests of one conversation."""
        return [request for request in self.requests if request.messages[0].content == task]


def spawn(task: str, name: str = "worker", **more: Any) -> ToolCall:
    return ToolCall(id="", name="spawn_subagent", arguments={"name": name, "task": task, **more})


def last(request: InferenceRequest) -> str:
    return request.messages[-1].content


def started_id(request: InferenceRequest) -> str:
    """Return the id of the background subagent that the conversation's first spawn call started."""
    return next(message.tool_calls[0].id for message in request.messages if message.tool_calls)


def with_id(name: str, **arguments: Any) -> Turn:
    """Return a turn that calls a tool with the id of the first subagent."""

    async def turn(request: InferenceRequest) -> ModelResponse:
        return says("", call(name, id=started_id(request), **arguments))

    return turn


def busy(output_tokens: int = 1) -> Turn:
    """Return a turn that calls another tool each time, so that the model does not seem to repeat itself."""

    async def turn(request: InferenceRequest) -> ModelResponse:
        return says("", call("noop", n=len(request.messages)), output_tokens=output_tokens)

    return turn


def waiting_for(gate: asyncio.Event, response: ModelResponse | None = None) -> Turn:
    async def turn(_: InferenceRequest) -> ModelResponse:
        await gate.wait()
        return response or says("done at last")

    return turn


def agent_of(
    model: Keyed,
    *hooks: Hook,
    definitions: Mapping[str, Subagent] | None = None,
    tools: Capability | None = None,
    bounds: dict[str, Any] | None = None,
    **settings: Any,
) -> Agent:
    capability = subagents(definitions or {"worker": WORKER}, model, **settings)
    capabilities = (limits(**(bounds or {})), flow(), tools or Capability("tools"), capability)
    host = Host(clock=settings["clock"]) if "clock" in settings else None
    return Agent(model=model, capabilities=capabilities, hooks=(*hooks, allowing()), host=host)


def root(run_id: str = "r1", task: str = "root") -> AgentState:
    return AgentState(run_id=run_id, thread="t", messages=(Message(role="user", content=task),))


def results(state: AgentState) -> list[str]:
    return [message.content for message in state.messages if message.role == "tool"]


def nobody_else() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds; the test fails when it never does."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


# --- foreground ---


async def test_a_subagent_sees_its_task_alone_and_the_parent_gets_its_answer() -> None:
    model = Keyed({"root": [says("", spawn("count")), says("it says seven")], "count": [says("seven")]})
    final = await agent_of(model).run(root())
    assert results(final) == ["seven"]
    assert final.messages[-1].content == "it says seven"
    (asked,) = model.asked("count")
    assert asked.system_prompt == "You work."
    assert [message.content for message in asked.messages] == ["count"]


async def test_a_definition_may_bring_its_own_model() -> None:
    own = SaysInTurn(says("mine"))
    model = Keyed({"root": [says("", spawn("x")), says("ok")]})
    final = await agent_of(model, definitions={"worker": Subagent("d", "p", model=own)}).run(root())
    assert results(final) == ["mine"]


async def test_a_subagent_that_does_not_complete_is_an_error_with_its_reason_and_last_words() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("x")), says("ok")],
            "x": [says("half of it", call("noop"))],
        }
    )
    definitions = {"worker": Subagent("d", "p", steps=2)}
    events = Events()
    final = await agent_of(model, definitions=definitions).run(root(), events)
    (result,) = results(final)
    assert "did not finish its task: stopped (subagent_budget, max_steps" in result
    assert "its budget is 2" in result
    assert "half of it" in result
    (finished,) = [event for event in events.of("tool_call_finished") if event["name"] == "spawn_subagent"]
    assert finished["is_error"]
    assert final.messages[-1].content == "ok"


async def test_a_subagent_whose_model_fails_does_not_fail_its_parent() -> None:
    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [ModelRefused("no such model")]})
    final = await agent_of(model).run(root())
    assert "failed" in results(final)[0]
    assert "no such model" in results(final)[0]
    assert final.messages[-1].content == "ok"


async def test_a_subagent_that_is_cancelled_from_within_does_not_cancel_its_parent() -> None:
    async def kills(_: AnyArguments, context: ToolContext) -> ToolResult:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return ToolResult(b"never")

    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("", call("kill"))]})
    events = Events()
    tools = Capability("tools", tools=(tool("kill", kills),))
    final = await agent_of(model, tools=tools).run(root(), events)
    assert "cancelled" in results(final)[0]
    assert final.messages[-1].content == "ok"
    assert [end["status"] for end in events.of("subagent_finished")] == ["cancelled"]


async def test_a_long_answer_is_cut_and_says_so() -> None:
    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("a" * 40_000)]})
    final = await agent_of(model).run(root())
    assert results(final)[0] == "a" * 32_000 + "\n[... 8000 characters cut]"


@pytest.mark.parametrize(
    "asked, recorded",
    [
        (spawn("x", name="nobody"), "there is no subagent 'nobody'; there are worker"),
        (spawn(""), "`task`"),
        (spawn("a" * 32_001), "`task`"),
        (call("check_subagent", id="zz"), "unknown background subagent 'zz'; known: none"),
        (call("wait_subagent", id="zz"), "unknown background subagent 'zz'"),
        (call("cancel_subagent", id="zz"), "unknown background subagent 'zz'"),
    ],
)
async def test_what_does_not_exist_is_an_error_that_lists_what_does(asked: ToolCall, recorded: str) -> None:
    final = await agent_of(Keyed({"root": [says("", asked), says("ok")]})).run(root())
    assert recorded in results(final)[0]


async def test_a_tool_call_outside_a_run_starts_no_subagent() -> None:
    agent = agent_of(Keyed({}))
    state = await ToolRunner(agent.hooks, agent.executor, Events()).run(root(), [spawn("x")])
    result = state.current.tool_executions[0].result
    assert result is not None
    assert result.is_error
    assert "belongs to none" in result.text()
    assert nobody_else()


@pytest.mark.parametrize(
    "definitions, depth",
    [({}, 3), ({"": WORKER}, 3), ({"a\nb": WORKER}, 3), ({"a" * 65: WORKER}, 3), ({"a": WORKER}, 0)],
)
def test_definitions_that_cannot_work_are_refused(definitions: dict[str, Subagent], depth: int) -> None:
    with pytest.raises(ValueError, match="subagents:"):
        subagents(definitions, Keyed({}), depth=depth)


# --- what is inherited ---


class Redaction(Hook):
    """A mandatory hook that takes a secret out of every result."""

    name = "redaction"
    mandatory = True

    async def after_tool_use(self, state: AgentState) -> AgentState:
        result = state.current.tool.result
        assert result is not None
        return state.with_result(
            ToolResult(result.content.replace(b"hunter2", b"***"), result.outcome, result.is_error)
        )


async def test_policy_and_mandatory_redaction_hold_in_a_subagent_and_in_one_below_it() -> None:
    ran: list[str] = []

    async def reads(_: AnyArguments, context: ToolContext) -> ToolResult:
        ran.append("read")
        return ToolResult(b"the password is hunter2")

    async def removes(_: AnyArguments, context: ToolContext) -> ToolResult:
        ran.append("rm")
        return ToolResult(b"gone")

    both = says("", call("read"), call("rm"))
    model = Keyed(
        {
            "root": [says("", spawn("child")), says("ok")],
            "child": [both, says("", spawn("grandchild")), says("child is done")],
            "grandchild": [both, says("grandchild is done")],
        }
    )
    policy = PolicyThat(
        lambda s: s.block("policy", "no-rm", "no") if s.current.tool.call.name == "rm" else s.proceed("p", "a", "yes")
    )
    policy.mandatory = False  # innermost is enough
    capabilities = (
        flow(),
        limits(),
        Capability("tools", tools=(tool("read", reads), tool("rm", removes))),
        subagents({"worker": WORKER}, model),
    )
    events = Events()
    await Agent(model=model, capabilities=capabilities, hooks=(Redaction(), policy)).run(root(), events)
    assert ran == ["read", "read"]
    for task in ("child", "grandchild"):
        said = [message.content for message in model.asked(task)[-1].messages if message.role == "tool"]
        assert said[0] == "the password is ***"
        assert "no-rm" in said[1]
    assert all("hunter2" not in str(event.payload) for event in events)


async def test_mandatory_hooks_are_inherited_in_their_order_and_others_are_not() -> None:
    log: list[tuple[str, int]] = []

    class Logs(Hook):
        def __init__(self, name: str, priority: int, *, mandatory: bool) -> None:
            self.name = name
            self.priority = priority
            self.mandatory = mandatory

        async def before_step(self, state: AgentState) -> AgentState:
            log.append((self.name, state.depth))
            return state

    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("hi")]})
    hooks = (Logs("inner", 1, mandatory=True), Logs("outer", 2, mandatory=True), Logs("mine", 3, mandatory=False))
    await agent_of(model, *hooks).run(root())
    assert [name for name, depth in log if depth == 0][:3] == ["mine", "outer", "inner"]
    assert [name for name, depth in log if depth == 1] == ["outer", "inner"]


async def test_a_subagent_belongs_to_its_parents_run_and_thread_and_leaves_no_metadata() -> None:
    started: list[AgentState] = []
    seen: list[AgentState] = []

    class Writes(Hook):
        mandatory = True

        async def execution_start(self, state: AgentState) -> AgentState:
            started.append(state)
            return state

        async def after_step(self, state: AgentState) -> AgentState:
            seen.append(state)
            return state.with_metadata(f"at.{state.depth}", 1)

    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("hi")]})
    final = await agent_of(model, Writes()).run(root().with_metadata("colour", "red"))
    child = next(state for state in seen if state.depth == 1)
    assert (child.run_id, child.thread, child.agent) == ("r1", "t", "worker")
    assert child.metadata == {}
    assert [(state.depth, state.spent.steps) for state in started] == [(0, 0), (1, 1)]
    assert final.metadata == {"colour": "red", "at.0": 1}


async def test_a_subagent_gets_the_tools_of_its_definition_and_no_others() -> None:
    ran: list[str] = []

    async def runs(arguments: AnyArguments, context: ToolContext) -> ToolResult:
        ran.append(context.call_id)
        return ToolResult(b"ran")

    tools = Capability("tools", tools=(tool("a", runs), tool("b", runs)))
    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("", call("b")), says("hi")]})
    events = Events()
    definitions = {"worker": Subagent("d", "p", tools=("a", "not_there"))}
    await agent_of(model, definitions=definitions, tools=tools).run(root(), events)
    assert [spec.name for spec in model.asked("x")[0].tools] == ["a"]
    assert last(model.asked("x")[1]) == "unknown tool 'b'; the tools are a"
    assert ran == []


async def test_a_tool_that_a_subagent_does_not_have_never_runs() -> None:
    tools_of_parent = ParentTools(Toolbox((tool("a", done), tool("b", done))), ("a",), ())
    assert (await ran(tools_of_parent, call("a"))).text() == "done"
    assert "unknown tool 'b'" in (await ran(tools_of_parent, call("b"))).text()


@pytest.mark.parametrize("names", [None, ("a", "write_todos")])
async def test_subagents_do_not_have_the_tools_about_the_parents_own_state(names: tuple[str, ...] | None) -> None:
    inner = Toolbox((tool("a", done), *todos().tools, *metadata().tools, *tool_registry().tools))
    tools_of_parent = ParentTools(inner, names, ())
    assert [spec.name for spec in tools_of_parent.specs()] == ["a"]
    refused = await ran(tools_of_parent, call("write_todos", todos=[]))
    assert refused.text() == "unknown tool 'write_todos'; the tools are a"


async def test_one_that_may_spawn_may_look_after_what_it_spawned() -> None:
    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("hi")]})
    await agent_of(model, definitions={"worker": Subagent("d", "p", tools=("spawn_subagent",))}).run(root())
    assert [spec.name for spec in model.asked("x")[0].tools] == [spec.name for spec in model.asked("root")[0].tools]


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_model_that_always_spawns_goes_as_deep_as_it_may_and_reads_why_it_stops(depth: int) -> None:
    async def again(request: InferenceRequest) -> ModelResponse:
        return says("", spawn(request.messages[0].content))

    model = Keyed({"root": [again, says("ok")]})
    events = Events()
    await agent_of(model, depth=depth).run(root(), events)
    assert len(events.of("subagent_started")) == depth
    offered = [any(spec.name == "spawn_subagent" for spec in request.tools) for request in model.requests]
    assert offered[: depth + 1] == [True] * depth + [False]
    (refused,) = [event for event in events.of("tool_call_finished") if "deep" in str(event["content"])]
    assert refused["content"] == f"subagents can be {depth} deep and you are at depth {depth}: do the task yourself"
    assert refused["is_error"]


async def test_a_subagent_goes_on_and_stops_as_its_parents_flow_says() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("blocked")), says("", spawn("failing")), says("ok")],
            "blocked": [says("", call("rm"))],
            "failing": [ModelUnavailable("away")],
        }
    )
    policy = PolicyThat(
        lambda s: s.block("policy", "no-rm", "no") if s.current.tool.call.name == "rm" else s.proceed("p", "a", "yes")
    )
    capabilities = (flow(retries=0, on_tool_blocked="stop"), limits(), subagents({"worker": WORKER}, model))
    final = await Agent(model=model, capabilities=capabilities, hooks=(policy,)).run(root())
    assert len(model.asked("blocked")) == 1
    assert "stopped (error_policy, tool_blocked" in results(final)[0]
    assert len(model.asked("failing")) == 1
    assert final.messages[-1].content == "ok"


async def test_a_subagent_of_an_agent_with_a_flow_of_its_own_making_has_the_usual_one() -> None:
    class GoesOn(Hook):
        async def after_step(self, state: AgentState) -> AgentState:
            return state if state.steps == 2 else state.request_continuation("mine", "twice", "two steps")

    model = Keyed(
        {"root": [says("", spawn("x")), says("ok")], "x": [says("", call("noop")), says("the end")]},
    )
    capabilities = (Capability("flow", hooks=(GoesOn(),)), limits(), subagents({"worker": WORKER}, model))
    final = await Agent(model=model, capabilities=capabilities, hooks=(allowing(),)).run(root())
    assert results(final) == ["the end"]


# --- what it may spend ---


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "report", "leave"]), st.integers(0, 30), st.integers(0, 9)), max_size=40
    ),
    st.integers(0, 100),
)
def test_the_others_of_a_member_are_all_that_was_ever_reported_but_its_own(
    deeds: list[tuple[str, int, int]], before: int
) -> None:
    family = Family(Spent(steps=before))
    reported = {"": 0}
    for number, (deed, which, steps) in enumerate(deeds):
        member = list(family.members.values())[which % len(family.members)]
        match deed:
            case "join":
                family.join(member, str(number), "x", "a task", background=False)
                reported[str(number)] = 0
            case "report":
                member.own += Spent(steps=steps)
                reported[member.id] += steps
            case _:
                family.leave(member)
        for present in family.members.values():
            assert family.others(present).steps + present.own.steps == before + sum(reported.values())


async def test_the_run_is_charged_for_all_that_its_subagents_spent() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("a"), spawn("b")), says("ok")],
            "a": [says("", spawn("c")), says("a", output_tokens=20)],
            "b": [says("b", output_tokens=300)],
            "c": [says("c", output_tokens=4000)],
        }
    )
    final = await agent_of(model).run(root())
    assert final.spent.usage == model.used
    assert (final.steps, final.spent.steps) == (2, 6)
    assert (final.tool_calls, final.spent.tool_calls) == (2, 3)


async def test_parallel_subagents_under_one_token_limit_stop_within_a_step_each_of_it() -> None:
    turns = [busy(output_tokens=10)]
    model = Keyed(
        {"root": [says("", *(spawn(task) for task in "abcd"), output_tokens=10)], **dict.fromkeys("abcd", turns)}
    )
    events = Events()
    final = await agent_of(model, bounds={"output_tokens": 200, "steps": 1000}).run(root(), events)
    assert final.spent.usage == model.used
    assert 200 <= model.used.output_tokens < 200 + 4 * 10
    ends = events.of("subagent_finished")
    assert [end["stop"]["rule"] for end in ends] == ["max_output_tokens"] * 4  # type: ignore[index,call-overload]
    assert final.stop is not None
    assert final.stop.rule == "max_output_tokens"


async def test_the_limit_of_steps_is_one_for_parent_and_subagents() -> None:
    model = Keyed({"root": [says("", spawn("a"))], "a": [busy()]})
    final = await agent_of(model, bounds={"steps": 7}).run(root())
    assert (final.steps, final.spent.steps) == (1, 7)
    assert len(model.requests) == 7


async def test_parallel_subagents_take_exactly_the_steps_of_the_limit() -> None:
    model = Keyed({"root": [says("", *(spawn(task) for task in "abc"))], **{task: [busy()] for task in "abc"}})
    final = await agent_of(model, bounds={"steps": 20}).run(root())
    assert final.spent.steps == len(model.requests) == 20


async def test_what_one_spent_counts_for_its_sister_before_its_step_is_over() -> None:
    async def outlasts(_: AnyArguments, context: ToolContext) -> ToolResult:
        await until(lambda: bool(events.of("subagent_finished")))
        return ToolResult(b"outlasted")

    events = Events()
    model = Keyed(
        {
            "root": [says("", spawn("a"), spawn("b"))],
            "a": [says("", call("outlast"), output_tokens=100)],
            "b": [busy()],
        }
    )
    tools = Capability("tools", tools=(tool("outlast", outlasts),))
    await agent_of(model, tools=tools, bounds={"output_tokens": 100}).run(root(), events)
    assert len(model.asked("b")) <= 1  # by itself it would have taken a hundred


async def test_subagents_at_once_make_exactly_the_tool_calls_of_the_limit() -> None:
    ran: list[str] = []

    async def runs(_: AnyArguments, context: ToolContext) -> ToolResult:
        await asyncio.sleep(0)
        ran.append(context.call_id)
        return ToolResult(b"ran")

    all_asked = asyncio.Barrier(3)

    async def eight(_: InferenceRequest) -> ModelResponse:
        await all_asked.wait()
        return says("", *(call("t", n=n) for n in range(8)))

    turns: list[Turn] = [eight]
    model = Keyed({"root": [says("", *(spawn(task) for task in "abc"))], **dict.fromkeys("abc", turns)})
    tools = Capability("tools", tools=(tool("t", runs),))
    events = Events()
    final = await agent_of(model, tools=tools, bounds={"tool_calls": 12}).run(root(), events)
    assert len(ran) == 12 - 3
    assert [end["rule"] for end in events.of("hook_verdict") if end["verdict"] == "deny"] == ["max_tool_calls"] * 15
    assert final.spent.tool_calls == 3 + 3 * 8
    assert final.stop is not None
    assert final.stop.rule == "max_tool_calls"
    assert len(model.requests) == 1 + 3


async def test_a_spawn_past_the_limit_of_tool_calls_starts_no_subagent() -> None:
    model = Keyed({"root": [says("", *(spawn("x") for _ in range(5)))], "x": [says("hi")]})
    events = Events()
    await agent_of(model, bounds={"tool_calls": 2}).run(root(), events)
    assert len(events.of("subagent_started")) == 2


async def test_a_subagents_budget_holds_for_it_and_those_below_together() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("a")), says("ok")],
            "a": [says("", spawn("b", name="free"))],
            "b": [busy(output_tokens=50)],
        }
    )
    definitions = {"worker": Subagent("d", "p", output_tokens=200), "free": WORKER}
    final = await agent_of(model, definitions=definitions).run(root())
    assert len(model.asked("b")) == 4  # 1 of a's and 4 times 50
    assert len(model.asked("a")) == 1
    assert "subagent_budget, max_output_tokens" in results(final)[0]
    assert final.messages[-1].content == "ok"


async def test_a_budget_in_dollars_stops_at_the_dollars() -> None:
    spends = ModelResponse(
        message=Message(role="assistant", tool_calls=(call("noop"),)),
        finish_reason="tool_calls",
        usage=Usage(cost_usd=0.1),
    )
    model = Keyed({"root": [says("", spawn("a")), says("ok")], "a": [spends]})
    final = await agent_of(model, definitions={"worker": Subagent("d", "p", cost_usd=0.25)}).run(root())
    assert len(model.asked("a")) == 3
    assert "max_cost_usd" in results(final)[0]
    assert final.spent.usage.cost_usd == pytest.approx(0.3)


async def test_a_subagent_has_the_time_that_is_left_of_the_runs() -> None:
    now_s = 1000.0

    def takes(seconds: float, *calls: ToolCall) -> Turn:
        async def turn(request: InferenceRequest) -> ModelResponse:
            nonlocal now_s
            now_s += seconds
            return says("", *(calls or (call("noop", n=len(request.messages)),)))

        return turn

    model = Keyed(
        {
            "root": [takes(30), takes(30, spawn("a")), says("ok")],
            "a": [takes(15)],
        }
    )
    final = await agent_of(model, bounds={"execution_time_s": 100}, clock=lambda: now_s).run(root())
    assert len(model.asked("a")) == 3
    assert "the run worked for 105.0 s, the limit is 100 s" in results(final)[1]


async def test_when_the_runs_time_is_over_its_subagents_and_their_tool_calls_end_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_s, now_s, begun = 60.0, 0.0, 0
    ended: list[str] = []
    passed_s = asyncio.get_running_loop().time
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: passed_s() + now_s)

    async def hangs(_: AnyArguments, context: ToolContext) -> ToolResult:
        nonlocal now_s, begun
        begun += 1
        if begun == 3:
            now_s = 2 * limit_s  # of the loop's timers too
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.call_id)
        raise AssertionError

    hang = [says("", call("hang"))]
    model = Keyed(
        {
            "root": [says("", spawn("front"), spawn("back", background=True))],
            "front": [says("", spawn("below"), call("hang"))],
            "back": hang,
            "below": hang,
        }
    )
    events = Events()
    agent = agent_of(
        model,
        tools=Capability("tools", tools=(tool("hang", hangs),)),
        bounds={"execution_time_s": limit_s},
        clock=lambda: now_s,
    )
    final = await agent.run(root(), events)
    assert nobody_else()
    assert len(ended) == 3
    assert final.stop is not None
    assert (final.stop.hook, final.stop.rule) == ("execution_time_limit", "max_seconds")
    assert events[-1].payload["status"] == "stopped"
    assert results(final)[0] == "the call was cancelled: the run's time is over"
    assert len(events.of("subagent_finished")) == 3
    calls = {event["call_id"] for event in events.of("tool_call_started")}
    assert sorted(calls) == sorted(event["call_id"] for event in events.of("tool_call_finished"))  # type: ignore[type-var]


# --- background ---


async def test_a_background_subagent_works_beside_its_parent_and_is_waited_for() -> None:
    gate = asyncio.Event()

    async def checks(request: InferenceRequest) -> ModelResponse:
        return says("", call("check_subagent", id=started_id(request)), call("list_subagents"))

    async def waits(request: InferenceRequest) -> ModelResponse:
        gate.set()
        return says("", call("wait_subagent", id=started_id(request)))

    model = Keyed(
        {
            "root": [says("", spawn("long\nwork", background=True)), checks, waits, says("ok")],
            "long\nwork": [waiting_for(gate)],
        }
    )
    final = await agent_of(model, clock=lambda: 0.0).run(root())
    id_ = final.messages[1].tool_calls[0].id
    started, checked, listed, waited = results(final)
    assert started.startswith(f"{id_} (worker) is at work")
    assert checked == f"{id_} (worker): running for 0 s, 1 steps, 0 tokens"
    assert listed == f"{id_} (worker): running: long work"
    assert waited == f"{id_} (worker): completed\ndone at last"
    assert final.notes["subagents.background"] == {
        id_: {"name": "worker", "task": "long\nwork", "status": "completed", "answer": "done at last", "seen": True}
    }
    assert final.spent.usage == model.used
    assert nobody_else()


async def test_waiting_too_short_a_time_leaves_the_subagent_at_work() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("x", background=True)), with_id("wait_subagent", timeout_s=0), says("ok")],
            "x": [waiting_for(asyncio.Event())],
        }
    )
    final = await agent_of(model).run(root())
    assert "running" in results(final)[1]


async def test_a_background_subagent_can_be_cancelled() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("x", background=True)), with_id("cancel_subagent"), says("ok")],
            "x": [waiting_for(asyncio.Event())],
        }
    )
    events = Events()
    final = await agent_of(model).run(root(), events)
    assert "cancelled" in results(final)[1]
    assert [end["status"] for end in events.of("subagent_finished")] == ["cancelled"]
    assert [entry["status"] for entry in noted(final).values()] == ["cancelled"]


def noted(state: AgentState) -> dict[str, Any]:
    note = state.notes["subagents.background"]
    assert isinstance(note, dict)
    return note


async def test_the_model_is_reminded_of_who_has_ended_until_it_looked() -> None:
    gate = asyncio.Event()

    async def frees(_: AnyArguments, context: ToolContext) -> ToolResult:
        gate.set()
        await until(lambda: bool(events.of("subagent_finished")))
        return ToolResult(b"freed")

    class Stores(Hook):
        priority = 1_000_000

        async def before_step(self, state: AgentState) -> AgentState:
            stored.append([entry["status"] for entry in noted(state).values()] if state.notes else [])
            return state

    stored: list[list[str]] = []
    events = Events()
    model = Keyed(
        {
            "root": [
                says("", spawn("x", background=True)),
                says("", call("free")),
                says("", call("list_subagents")),
                with_id("check_subagent"),
                says("ok"),
            ],
            "x": [waiting_for(gate)],
        }
    )
    tools = Capability("tools", tools=(tool("free", frees),))
    final = await agent_of(model, Stores(), tools=tools).run(root(), events)
    assert stored == [[], ["running"], ["completed"], ["completed"], ["completed"]]
    reminded = ["background subagents have ended" in last(request) for request in model.asked("root")]
    assert reminded == [False, False, True, True, False]
    id_ = final.messages[1].tool_calls[0].id
    assert f"{id_} (worker, completed)" in last(model.asked("root")[2])
    assert not any("have ended" in message.content for message in final.messages)


async def test_one_that_ends_after_it_was_said_to_be_running_is_still_news() -> None:
    gate = asyncio.Event()

    class FreesAfterCheck(Hook):
        priority = -1_000_000  # before the note is made

        async def after_tool_use(self, state: AgentState) -> AgentState:
            if state.current.tool.call.name == "check_subagent" and not gate.is_set():
                gate.set()
                await until(lambda: bool(events.of("subagent_finished")))
            return state

    events = Events()
    model = Keyed(
        {
            "root": [
                says("", spawn("x", background=True)),
                with_id("check_subagent"),
                with_id("check_subagent"),
                says("ok"),
            ],
            "x": [waiting_for(gate)],
        }
    )
    final = await agent_of(model, FreesAfterCheck()).run(root(), events)
    assert "running" in results(final)[1]
    assert "have ended" in last(model.asked("root")[2])
    assert "have ended" not in last(model.asked("root")[3])


async def test_eight_background_subagents_at_once_are_the_most() -> None:
    model = Keyed(
        {
            "root": [says("", *(spawn("x", background=True) for _ in range(9))), says("ok")],
            "x": [waiting_for(asyncio.Event())],
        }
    )
    final = await agent_of(model).run(root())
    said = results(final)
    assert sum("is at work" in text for text in said) == 8
    assert "8 background subagents are at work" in said[8]
    assert len(noted(final)) == 8


async def test_sixteen_of_a_family_at_work_are_the_most_in_background_and_foreground_together() -> None:
    gate = asyncio.Event()
    model = Keyed(
        {
            "root": [
                says("", *(spawn("back", background=True) for _ in range(8))),
                says("", *(spawn("front") for _ in range(8))),
                says("", spawn("later")),
                says("ok"),
            ],
            "back": [waiting_for(asyncio.Event())],
            "front": [waiting_for(gate)],
            "later": [says("there was room")],
        }
    )
    run = asyncio.create_task(agent_of(model, bounds={"repeated_calls": 100}).run(root()))
    await until(lambda: len(model.asked("front")) == 7)
    gate.set()
    said = results(await run)
    assert [text.split("\n")[0] for text in said[8:15]] == ["done at last"] * 7
    assert "16 of this run's agents are at work" in said[15]
    assert said[16] == "there was room"


async def test_the_note_forgets_the_oldest_that_have_ended() -> None:
    model = Keyed(
        {
            "root": [*(says("", *(spawn("x", background=True) for _ in range(4))) for _ in range(10)), says("ok")],
            "x": [says("a" * 10_000)],
        }
    )
    final = await agent_of(model, bounds={"steps": 1000}).run(root())
    spawned = [message.tool_call_id for message in final.messages if message.role == "tool"]
    assert len(spawned) == 40
    assert list(noted(final)) == spawned[-32:]
    assert all(len(entry["answer"]) < 2_100 for entry in noted(final).values())


async def test_a_subagent_cannot_look_after_its_sisters() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("sister", background=True)), says("", spawn("nosy")), says("ok")],
            "sister": [waiting_for(asyncio.Event())],
            "nosy": [says("", call("list_subagents")), says("hm")],
        }
    )
    await agent_of(model).run(root())
    assert last(model.asked("nosy")[1]) == "[no background subagents]"


# --- ends ---


class SeesTheEnd(Hook):
    """Keeps the states that it is shown at the end of the root run."""

    mandatory = True

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.states: list[AgentState] = []

    async def execution_end(self, state: AgentState) -> AgentState:
        if state.depth == 0:
            self.states.append(state)
        return state


async def test_background_subagents_end_before_the_run_that_started_them() -> None:
    async def answers(_: InferenceRequest) -> ModelResponse:
        await until(lambda: len(events.of("subagent_started")) == 2)
        return says("ok")

    model = Keyed(
        {
            "root": [says("", spawn("x", background=True)), answers],
            "x": [says("", spawn("y", background=True)), waiting_for(asyncio.Event())],
            "y": [waiting_for(asyncio.Event())],
        }
    )
    events = Events()
    seen = SeesTheEnd(priority=-1)
    final = await agent_of(model, seen).run(root(), events)
    assert nobody_else()
    assert [entry["status"] for entry in noted(seen.states[-1]).values()] == ["cancelled"]
    assert [end["status"] for end in events.of("subagent_finished")] == ["cancelled"] * 2
    assert events[-1].type == "run_finished"
    assert events[-1].payload["status"] == "completed"
    assert [entry["status"] for entry in noted(final).values()] == ["cancelled"]
    assert final.spent.usage == model.used


async def test_when_the_run_is_cancelled_its_subagents_and_their_tool_calls_end_with_it() -> None:
    at_work = 0
    ended: list[str] = []

    async def hangs(_: AnyArguments, context: ToolContext) -> ToolResult:
        nonlocal at_work
        at_work += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.call_id)
        return ToolResult(b"never")

    hang = [says("", call("hang"))]
    model = Keyed(
        {
            "root": [says("", spawn("front"), spawn("back", background=True))],
            "front": [says("", spawn("below"), call("hang"))],
            "back": hang,
            "below": hang,
        }
    )
    events = Events()
    tools = Capability("tools", tools=(tool("hang", hangs),))
    last_seen = SeesTheEnd(priority=1_000_000)
    run = asyncio.create_task(agent_of(model, last_seen, tools=tools).run(root(), events))
    await until(lambda: at_work == 3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert nobody_else()
    assert len(ended) == 3
    assert [end["status"] for end in events.of("subagent_finished")] == ["cancelled"] * 3
    assert events[-1].type == "run_finished"
    assert last_seen.states[-1].spent.usage == model.used
    assert last_seen.states[-1].spent.tool_calls == 6
    happened = [(event.type, event.payload.get("call_id") or event.payload.get("within")) for event in events]
    front: list[Any] = [{"name": "worker", "task": task} for task in ("front", "below")]
    fronts = [event["call_id"] for event in events.of("tool_call_started") if event["arguments"] in front]
    assert len(fronts) == 2
    for id_ in fronts:  # the call of a subagent is over only when the subagent is
        assert happened.index(("subagent_finished", id_)) < happened.index(("tool_call_finished", id_))
    calls = {event["call_id"] for event in events.of("tool_call_started")}
    assert sorted(calls) == sorted(event["call_id"] for event in events.of("tool_call_finished"))  # type: ignore[type-var]


async def test_no_subagent_outlives_a_run_that_is_cancelled_again_during_its_end() -> None:
    held = asyncio.Event()

    class HoldsTheEnd(Hook):
        priority = -1_000_000

        async def execution_end(self, state: AgentState) -> AgentState:
            if state.depth == 0:
                held.set()
                await asyncio.Event().wait()
            return state

    model = Keyed(
        {
            "root": [says("", spawn("x", background=True)), says("ok")],
            "x": [waiting_for(asyncio.Event())],
        }
    )
    run = asyncio.create_task(agent_of(model, HoldsTheEnd()).run(root()))
    await held.wait()
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(nobody_else)


async def test_one_that_refuses_to_end_takes_no_other_step() -> None:
    gate = asyncio.Event()

    async def deaf(_: AnyArguments, context: ToolContext) -> ToolResult:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return ToolResult(b"still here")

    model = Keyed(
        {
            "root": [says("", spawn("x", background=True)), says("", call("list_subagents")), says("ok")],
            "x": [says("", call("deaf"))],
        }
    )
    events = Events()
    tools = Capability("tools", tools=(tool("deaf", deaf),))
    final = await agent_of(model, tools=tools, grace_s=0).run(root(), events)
    assert final.messages[-1].content == "ok"
    assert not nobody_else()
    gate.set()
    await until(nobody_else)
    assert len(model.asked("x")) == 1
    assert [end["status"] for end in events.of("subagent_finished")] == ["cancelled"]


async def test_a_subagent_without_its_family_takes_no_step() -> None:
    model = Keyed({"x": [says("hi")]})
    final = await agent_of(model).run(root(task="x").with_note("subagents.member", "call_gone"))
    assert final.stop is not None
    assert final.stop.rule == "family_ended"
    assert model.requests == []


async def test_families_are_forgotten_with_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Families] = []
    original = Families.__init__

    def spied(self: Families, *given: Any) -> None:
        made.append(self)
        original(self, *given)

    monkeypatch.setattr(Families, "__init__", spied)
    model = Keyed({"root": [says("", spawn("x")), says("ok")], "x": [says("hi")]})
    await agent_of(model).run(root())
    (families,) = made
    assert families._families == {}


async def test_one_that_leaves_the_family_takes_those_below_along() -> None:
    family = Family(Spent())
    child = family.join(family.root, "child", "x", "a task", background=False)
    grandchild = family.join(child, "grandchild", "x", "a task", background=True)
    work = grandchild.task = asyncio.create_task(asyncio.Event().wait())
    family.leave(child)
    assert list(family.members) == [""]
    await asyncio.wait({work})
    assert work.cancelled()


# --- the rest of the world ---


async def test_events_nest_under_the_call_that_started_the_subagent() -> None:
    model = Keyed(
        {
            "root": [says("", spawn("child")), says("ok")],
            "child": [says("", spawn("grandchild")), says("mine")],
            "grandchild": [says("hers")],
        }
    )
    events = Events()
    await agent_of(model).run(root(), events)
    outer, inner = [event["call_id"] for event in events.of("tool_call_started")]
    assert [event["within"] for event in events.of("subagent_started")] == [outer, inner]
    assert [(event["within"], event["answer"]) for event in events.of("subagent_finished")] == [
        (inner, "hers"),
        (outer, "mine"),
    ]
    assert [event["agent"] for event in events.of("subagent_started")] == ["worker", "worker"]
    assert [event.get("within") for event in events.of("tool_call_finished")] == [outer, None]
    assert [event.get("within") for event in events.of("model_finished")] == [None, outer, inner, outer, None]
    assert [event.type for event in events if event.type.startswith("run_")] == ["run_started", "run_finished"]
    assert "within" not in events[0].payload
    assert "within" not in events[-1].payload


async def test_a_resumed_run_knows_what_was_spent_and_whom_it_lost() -> None:
    stored: list[str] = []

    class Stores(Hook):
        mandatory = True
        priority = 1_000_000  # before the books are brought up to date for the new step

        async def before_step(self, state: AgentState) -> AgentState:
            if state.depth == 0:
                stored.append(state.model_dump_json())
            return state

    gate = asyncio.Event()

    async def waits(request: InferenceRequest) -> ModelResponse:
        if not gate.is_set():  # the first process ends here
            gate.set()
            await asyncio.Event().wait()
        return says("", call("check_subagent", id=started_id(request)), call("list_subagents"))

    model = Keyed(
        {
            "root": [says("", spawn("x", background=True), spawn("y")), waits, says("ok")],
            "x": [says("", call("noop"), output_tokens=40), waiting_for(asyncio.Event())],
            "y": [says("hi", output_tokens=300)],
        }
    )
    first = asyncio.create_task(agent_of(model, Stores()).run(root()))
    await gate.wait()
    state = AgentState.model_validate_json(stored[-1])
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    assert state.spent.usage == model.used
    assert [entry["status"] for entry in noted(state).values()] == ["running"]
    resumed = await agent_of(model).run(state)
    checked, listed = results(resumed)[-2:]
    assert "lost" in checked
    assert "spawn it again" in checked
    assert "(worker): lost: x" in listed
    assert [("have ended" in last(request)) for request in model.asked("root")] == [False, False, True, False]
    assert [entry["status"] for entry in noted(resumed).values()] == ["lost"]
    assert resumed.spent.usage == model.used


async def test_limits_of_a_resumed_run_count_what_the_process_before_spent() -> None:
    model = Keyed({"root": [says("", spawn("x"))], "x": [busy(output_tokens=10)]})
    state = root().with_(others=Spent(usage=Usage(output_tokens=60)))
    final = await agent_of(model, bounds={"output_tokens": 100}).run(state)
    assert len(model.asked("x")) == 4
    assert final.spent.usage.output_tokens == 60 + model.used.output_tokens == 101


async def test_two_runs_of_one_agent_at_once_share_nothing() -> None:
    both = asyncio.Barrier(2)

    def meets(response: ModelResponse) -> Turn:
        async def turn(_: InferenceRequest) -> ModelResponse:
            await both.wait()
            return response

        return turn

    def script(name: str, tokens: int) -> dict[str, Sequence[Turn]]:
        return {
            name: [
                says("", spawn(f"{name}1", background=True)),
                says("", spawn(f"{name}2"), call("list_subagents")),
                with_id("wait_subagent"),
                says(f"{name} ok"),
            ],
            f"{name}1": [meets(says(f"{name} one", output_tokens=tokens))],
            f"{name}2": [meets(says(f"{name} two", output_tokens=tokens))],
        }

    model = Keyed({**script("a", 10), **script("b", 1000)})
    agent = agent_of(model)
    a, b = await asyncio.gather(agent.run(root("ra", "a")), agent.run(root("rb", "b")))
    assert a.spent.usage.output_tokens == 4 + 20
    assert b.spent.usage.output_tokens == 4 + 2000
    assert results(a)[3].endswith("a one")
    assert results(b)[3].endswith("b one")
    assert results(a)[2].count("\n") == 0
    assert list(noted(a)) != list(noted(b))
