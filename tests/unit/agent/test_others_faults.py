"""Hooks, tools, models and approvers that do what they must not: the run ends well, and its state can be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelRefused
from agent.hooks.hook import Hook, InferenceRequest, NextInference, NextToolUse, OnFailure
from agent.loop import Host
from agent.messages import Message, ToolCall, ToolResult, Usage
from agent.models.model import Model, OnDelta
from agent.state import AgentState, ModelResponse, ToolExecution
from agent.subagents.capability import Subagent, subagents
from agent.tools.approval import Denied, Granted, Pending
from agent.tools.tool import Capability, Tool, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, Events, PolicyThat, SaysInTurn, call, done, says, state, tool

HALF = "caf\udce9"


def with_tools(*tools: Tool) -> Capability:
    return Capability("tools", tools=tools)


class Ended(Hook):
    """Sees how the run ended."""

    def __init__(self) -> None:
        self.stops: list[str] = []

    async def execution_end(self, state: AgentState) -> AgentState:
        self.stops.append(state.stop.rule if state.stop is not None else "")
        return state


# --- what is no Exception ---


class Exits(BaseException):
    """What some library raises to end a program."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Exits("now")], ids=repr)
@pytest.mark.parametrize(
    "point", ["before_step", "after_tool_use", "around_inference", "around_tool_use", "should_continue"]
)
async def test_a_hook_that_would_end_the_process_ends_its_run_at_most(error: BaseException, point: str) -> None:
    async def raises(*_: object) -> Any:
        raise error

    hook, ended = type("Raises", (Hook,), {point: raises})(), Ended()
    model = SaysInTurn(says("", call("t")), says("done"))
    events = Events()
    await Agent(model=model, capabilities=(with_tools(tool("t", done)),), hooks=(hook, ended)).run(state(), events)
    assert len(ended.stops) == 1
    assert events.of("hook_failed")[0]["hook"] == "Raises"
    assert events[-1].type == "run_finished"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Exits("now")], ids=repr)
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_that_would_end_the_process_has_failed(error: BaseException, calls: int) -> None:
    async def raises(*_: object) -> ToolResult:
        raise error

    model = SaysInTurn(says("", *(call("t", f"c{n}") for n in range(calls))), says("done"))
    events = Events()
    final = await Agent(model=model, capabilities=(with_tools(tool("t", raises)),)).run(state(), events)
    assert final.messages[-1].content == "done"
    assert [one["outcome"] for one in events.of("tool_call_finished")] == ["failed"] * calls


async def test_a_model_driver_that_would_end_the_process_has_failed() -> None:
    class Driver:
        name = "driver"

        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            raise SystemExit(3)

    ended = Ended()
    final = await Agent(model=Driver(), capabilities=(flow(retries=0),), hooks=(ended,)).run(state())
    assert final.stop is not None
    assert "SystemExit" in final.stop.reason
    assert len(ended.stops) == 1


# --- tokens ---


class AsksTwice(Hook):
    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        await next_(request)
        return await next_(request)


class AnswersItself(Hook):
    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        await next_(request)
        return ModelResponse(message=Message(role="assistant", content="mine"), finish_reason="stop")


class AsksElsewhere(Hook):
    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        return says("from elsewhere", output_tokens=70)


@pytest.mark.parametrize("ring, tokens", [(AsksTwice(), 80), (AnswersItself(), 40), (AsksElsewhere(), 70)])
async def test_no_ring_hides_tokens_from_the_budget(ring: Hook, tokens: int) -> None:
    class Again(Hook):
        async def after_step(self, state: AgentState) -> AgentState:
            return state.request_continuation("again", "again", "again")

    agent = Agent(
        model=SaysInTurn(says("hi", output_tokens=40)),
        capabilities=(limits(output_tokens=tokens),),
        hooks=(ring, Again()),
    )
    final = await agent.run(state())
    assert final.usage.output_tokens == tokens
    assert (final.steps, final.stop.rule if final.stop else "") == (1, "max_output_tokens")


# --- a thread that endpoints take ---


def answered(messages: Sequence[Message]) -> bool:
    """Whether each message with tool calls is followed by their answers, before anything else is said."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(str(message.tool_call_id))
        elif waiting:
            return False
        waiting += [one.id for one in message.tool_calls]
    return not waiting


async def test_a_hook_may_speak_after_tool_calls_that_were_forbidden() -> None:
    class Forbids(Hook):
        async def after_inference(self, state: AgentState) -> AgentState:
            return state.forbid_continuation("forbids", "enough", "enough")

        async def after_step(self, state: AgentState) -> AgentState:
            return state.say(Message(role="user", content="that was enough"))

    model = SaysInTurn(says("", call("t"), call("t", "c2")))
    final = await Agent(model=model, capabilities=(with_tools(tool("t", done)),), hooks=(Forbids(),)).run(state())
    assert [message.role for message in final.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert answered(final.messages)


# --- what cannot be changed in place, or stored ---


@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_a_hook_cannot_change_the_state_that_the_caller_holds(on_failure: OnFailure) -> None:
    class ChangesInPlace(Hook):
        async def before_step(self, state: AgentState) -> AgentState:
            state.metadata["list"].append(1)  # type: ignore[union-attr]
            return state

    hook = ChangesInPlace()
    hook.on_failure = on_failure
    before = state(metadata={"list": [{"a": 1}]}, notes={})
    final = await Agent(model=SaysInTurn(says("hi")), hooks=(hook,)).run(before)
    assert before.metadata == final.metadata == {"list": [{"a": 1}]}
    assert (final.stop is not None and final.stop.rule == "hook_failed") is (on_failure == "closed")


@pytest.mark.parametrize("name", ["metadata", "notes"])
@pytest.mark.parametrize("of", ["given", "default", "written", "put there", "next run"])
async def test_no_value_of_a_state_can_be_changed_in_place(name: str, of: str) -> None:
    value: dict[str, Any] = {"k": {"deep": [1]}}
    first = AgentState(run_id="r", thread="t", **{name: value})
    found = {
        "given": first,
        "default": AgentState(run_id="r", thread="t"),
        "written": first.with_metadata("a", [1]).with_note("a", [1]),
        "put there": first,
        "next run": first.next_run("r2", "more"),
    }[of]
    if of == "put there":

        class Puts(Hook):
            async def before_step(self, state: AgentState) -> AgentState:
                return state.with_(**{name: {"k": {"deep": [1]}}})

        found = await Agent(model=SaysInTurn(says("hi")), hooks=(Puts(),)).run(state())
    mine = getattr(found, name)
    with pytest.raises(TypeError, match="belongs to an immutable state: make a copy"):
        mine["k"] = 1
    if "k" in mine:
        for change in (lambda: mine["k"].update(x=1), lambda: mine["k"]["deep"].append(2), lambda: mine.pop("k")):
            with pytest.raises(TypeError, match="immutable"):
                change()
    assert value == {"k": {"deep": [1]}}
    assert AgentState.model_validate_json(found.model_dump_json()) == found.cleared()


async def test_text_that_no_store_takes_is_replaced_wherever_it_enters() -> None:
    class Speaks(Hook):
        async def after_step(self, state: AgentState) -> AgentState:
            state = state.say(Message(role="user", content=HALF))
            return state.forbid_continuation(HALF, HALF, HALF)

    begun = AgentState(run_id="r", thread="t").next_run("r", HALF)
    for model in (SaysInTurn(says("hi")), SaysInTurn(ModelRefused(HALF))):
        final = await Agent(model=model, hooks=(Speaks(),), system_prompt=HALF).run(begun)
        assert AgentState.model_validate_json(final.model_dump_json()) == final
        assert final.messages[0].content == "caf\ufffd"
        assert final.stop is not None
        assert "caf\ufffd" in final.stop.reason


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value, problem",
    [
        (nested(96), "nested more than 96 deep"),
        (nested(220), "nested more than 96 deep"),
        (nested(5000), "nested more than 96 deep"),
        ({1: "a"}, "the key 1 is not a str"),
        ([{"a": {2: 3}}], "the key 2 is not a str"),
        (float("inf"), "inf is not a JSON number"),
        (HALF, "half of a surrogate pair"),
        ({1, 2}, "set is not JSON"),
    ],
    ids=["at the limit", "past it", "far past it", "key", "deep key", "number", "text", "set"],
)
@pytest.mark.parametrize("write", ["with_metadata", "with_note"])
def test_what_would_not_come_back_from_a_store_is_refused_where_it_enters(write: str, value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        getattr(state(), write)("key", value)


def test_what_passes_comes_back_the_same() -> None:
    made = AgentState(run_id="r", thread="t", metadata={"given": ["a", ["b"]]})
    made = made.with_metadata("written", ("c", ("d",))).with_metadata("deep", nested(95))
    assert made.metadata["given"] == ["a", ["b"]]
    assert made.metadata["written"] == ["c", ["d"]]
    assert AgentState.model_validate_json(made.model_dump_json()).metadata == made.metadata
    with pytest.raises(ValidationError, match="nested"):
        AgentState(run_id="r", thread="t", metadata={"deep": nested(97)})


# --- approvers ---


class BadApprover:
    """An approver whose methods are given by the test."""

    def __init__(self, edited: Any = None, answer: Any = None) -> None:
        self._edited, self._answer = edited, answer

    async def edited(self, state: AgentState, call_ids: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        if isinstance(self._edited, BaseException):
            raise self._edited
        return self._edited  # type: ignore[no-any-return]

    async def answer(self, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
        return self._answer  # type: ignore[no-any-return]

    async def use(self, granted: Granted) -> str:
        return ""


def asking(model: Model, approver: BadApprover, ran: list[str]) -> Agent:
    async def run(asked: Any, context: ToolContext) -> ToolResult:
        ran.append(context.call_id)
        return ToolResult(b"ran")

    policy = PolicyThat(
        lambda s: s.ask("policy", "ask", "ask") if s.current.tool.call.name == "t" else s.proceed("policy", "ok", "ok")
    )
    return Agent(
        model=model,
        capabilities=(with_tools(tool("t", run), tool("u", run)),),
        hooks=(policy,),
        host=Host(approver=approver),
    )


@pytest.mark.parametrize("answer", [None, "yes", True])
async def test_an_approver_that_gives_no_answer_blocks_the_call(answer: Any) -> None:
    ran: list[str] = []
    agent = asking(SaysInTurn(says("", call("t")), says("done")), BadApprover(answer=answer), ran)
    final = await agent.run(state())
    assert ran == []
    assert "instead of an answer" in final.messages[2].content
    assert final.messages[-1].content == "done"


@pytest.mark.parametrize("edited", [RuntimeError("away"), SystemExit(1), None, {"c": 1}, [1]], ids=repr)
async def test_an_approver_whose_edits_cannot_be_had_blocks_the_call_that_waited_and_no_other(edited: Any) -> None:
    ran: list[str] = []
    approver = BadApprover(answer=Pending("apr"))
    agent = asking(SaysInTurn(says("", call("t"), call("u", "c2")), says("done")), approver, ran)
    waiting = await agent.run(state())
    assert waiting.pending is not None
    (first, second) = (one["id"] for one in waiting.pending["calls"])  # type: ignore[union-attr, index, call-overload]
    approver._edited = {first: 1} if edited == {"c": 1} else edited
    approver._answer = Granted("apr")
    final = await agent.run(AgentState.model_validate_json(waiting.model_dump_json()))
    assert ran == [second]
    assert "as the approver edited them could not be read" in final.messages[2].content
    assert final.messages[-1].content == "done"


# --- what is wrong is said of who did it, and early ---


class BadResult(Hook):
    name = "bad_result"

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        await next_(tool)
        return ToolResult("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("on_failure, content", [("open", b"done"), ("closed", b"withheld")])
async def test_a_ring_that_gives_text_is_named_and_open_counts(on_failure: OnFailure, content: bytes) -> None:
    class Later(Hook):
        name = "later"

        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state

    ring = BadResult()
    ring.on_failure = on_failure
    events = Events()
    tools = with_tools(tool("t", done))
    model = SaysInTurn(says("", call("t")), says("bye"))
    await Agent(model=model, capabilities=(tools,), hooks=(ring, Later())).run(state(), events)
    assert {one["hook"] for one in events.of("hook_failed")} == {"bad_result"}
    assert content.decode() in str(events.of("tool_call_finished")[0]["content"])


@pytest.mark.parametrize("concurrency", [0, -1])
def test_an_agent_that_could_run_no_tool_is_refused(concurrency: int) -> None:
    with pytest.raises(ValueError, match="it must be at least 1"):
        Agent(model=SaysInTurn(says("hi")), host=Host(concurrency=concurrency))


def test_a_coroutine_for_matches_is_refused_when_the_agent_is_put_together() -> None:
    class Waits(Hook):
        async def matches(self, state: AgentState) -> bool:  # type: ignore[override]
            return False

        async def before_step(self, state: AgentState) -> AgentState:
            return state

    with pytest.raises(TypeError, match="write `def matches`"):
        Agent(model=SaysInTurn(says("hi")), hooks=(Waits(),))


class NotAsync:
    def run(self, asked: Any, context: ToolContext) -> ToolResult:
        return ToolResult(b"")


def plain(asked: Any, context: ToolContext) -> ToolResult:
    return ToolResult(b"")


@pytest.mark.parametrize(
    "made, said",
    [
        (Tool("t", "d", AnyArguments, plain), "write `async def plain`"),  # type: ignore[arg-type]
        (Tool("t", "d", AnyArguments, NotAsync().run), "write `async def run`"),  # type: ignore[arg-type]
        (Tool("t", "d", AnyArguments, "run"), "run must be an async function, not str"),  # type: ignore[arg-type]
        (Tool("t", "d", dict, done), "arguments must be a pydantic model class"),  # type: ignore[arg-type]
        (done, "make one with agent.tools.tool.Tool"),
    ],
)
def test_a_tool_that_could_never_run_is_refused_when_the_agent_is_put_together(made: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Agent(model=SaysInTurn(says("hi")), capabilities=(Capability("tools", tools=(made,)),))


async def test_the_path_of_any_tool_is_absolute_when_policy_judges_and_when_the_tool_runs() -> None:
    class WithPath(BaseModel):
        path: str
        other: str = "a"

    seen: list[str] = []

    async def run(asked: WithPath, context: ToolContext) -> ToolResult:
        seen.append(asked.path)
        return ToolResult(b"")

    policy = PolicyThat(lambda s: s.proceed("policy", "ok", "ok"))
    one = Tool("t", "d", WithPath, run)
    model = SaysInTurn(says("", call("t", path="a/../../etc/passwd"), call("t", "c2", path="")), says("done"))
    final = await Agent(model=model, capabilities=(with_tools(one),), hooks=(policy,)).run(state())
    assert policy.seen[0] == {"path": "/etc/passwd"}
    assert seen == ["/etc/passwd"]
    assert "the path is empty" in final.messages[3].content
    assert Toolbox([one]).prepare(call("t", path="x")).call.arguments == {"path": "/workspace/x"}


# --- families ---


async def test_runs_of_two_threads_with_one_id_have_families_of_their_own() -> None:
    started, goes_on = asyncio.Event(), asyncio.Event()
    spawn = ToolCall(id="c1", name="spawn_subagent", arguments={"name": "works", "task": "below"})

    class Waits:
        name = "waits"

        async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
            task = request.messages[0].content
            if task == "quick":
                return says("quickly done")
            if task == "below":
                started.set()
                await goes_on.wait()
                return says("done below", output_tokens=7)
            if len(request.messages) == 1:
                return says("", spawn)
            return says("done")

    below = subagents({"works": Subagent("works", "You work.")}, Waits())
    agent = Agent(model=Waits(), capabilities=(below, limits()))

    def begin(thread: str, task: str) -> AgentState:
        return AgentState(run_id="one", thread=thread).next_run("one", task)

    slow = asyncio.create_task(agent.run(begin("slow", "slow")))
    await asyncio.wait_for(started.wait(), 30)
    quick = await agent.run(begin("quick", "quick"))
    assert quick.others.usage == Usage()
    goes_on.set()
    final = await slow
    assert "done below" in final.messages[2].content
    assert final.others.usage.output_tokens == 7
