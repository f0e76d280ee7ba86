"""Each event that is emitted has a class with exactly the payload's fields, and each class is of an event."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter

from agent.agent import Agent
from agent.capabilities.bash import bash
from agent.capabilities.flow import flow
from agent.capabilities.todos import todos
from agent.errors import ModelUnavailable
from agent.events import Event, RunFinished, Stop, SubagentFinished, ToolCallFinished, event_types
from agent.hooks.hook import Hook, InferenceRequest
from agent.loop import Host
from agent.messages import ToolCall, Usage
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse, PolicyWord, Spent
from agent.subagents.capability import Subagent, subagents
from agent.tools.approval import Denied, Granted, Pending
from agent.tools.tool import Capability
from tests.unit.agent.fakes import (
    Events,
    FakeExec,
    FakePiece,
    FakeShell,
    PolicyThat,
    SaysInTurn,
    call,
    says,
    state,
    tool,
)

REPOSITORY = Path(__file__).parents[3]
BY_THE_GATEWAY = {"connection_ended", "workspace_saved", "workspace_not_saved"}


def wire(event: Event) -> dict[str, JsonValue]:
    """Return the payload that the typed event stands for."""
    typed = event.typed()
    payload: dict[str, JsonValue] = TypeAdapter(type(typed)).dump_python(typed, mode="json")
    return payload


class Waits(SaysInTurn):
    """A model that reasons, and whose requests wait for their turn."""

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        with request.progress.waiting("others are asking"):
            on_delta("Let me see.", reasoning=True)
            return await super().infer(request, on_delta)


class Fails(Hook):
    name = "fails"
    on_failure = "open"

    async def after_step(self, state: AgentState) -> AgentState:
        raise RuntimeError("out of order")


class Rewrites(Hook):
    name = "rewrites"

    async def before_tool_use(self, state: AgentState) -> AgentState:
        if state.current.tool.call.name != "execute":
            return state
        return state.with_arguments({"command": "make -k"})


class FakeApprover:
    """An approver that answers the second time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def edited(self, state: AgentState, call_ids: object) -> dict[str, dict[str, JsonValue]]:
        return {}

    async def answer(self, state: AgentState, execution: object) -> Granted | Denied | Pending:
        self.asked += 1
        return Pending("a1") if self.asked == 1 else Granted("a1", "be quick")

    async def use(self, granted: Granted) -> str:
        return ""


def judged(of: AgentState) -> AgentState:
    word = PolicyWord(version="v1", would_be="deny", would_be_rule="shadow")
    name = of.current.tool.call.name
    if name == "execute" and not of.depth:
        return of.ask("policy", "asks", "somebody must see it", word)
    return of.block("policy", "never", "no", word) if name == "hide" else of.proceed("policy", "ok", "fine", word)


async def all_of_the_agent() -> Events:
    """Return the events of a run that has all of them: it fails, waits, suspends, resumes and has a subagent."""
    model = Waits(
        ModelUnavailable("away"),
        says("", call("execute", command="make"), call("hide", ""), ToolCall(id="", name="no", arguments=None)),
        says("", call("write_todos", "", todos=[{"id": "1", "title": "t", "status": "done"}])),
        says("", ToolCall(id="", name="spawn_subagent", arguments={"name": "helper", "task": "help"})),
        says("done"),
    )
    shell = FakeShell(FakeExec(output=(FakePiece("stdout", b"made\n"),)))
    agent = Agent(
        model=model,
        capabilities=(
            flow(backoff_s=0),
            bash(shell),
            todos(),
            subagents({"helper": Subagent("helps", "You help.")}, SaysInTurn(says("helped"))),
            Capability("hidden", tools=(tool("hide", lambda *_: asyncio.sleep(0)),)),
        ),
        hooks=(Fails(), Rewrites(), PolicyThat(judged)),
        host=Host(approver=FakeApprover()),
    )
    events = Events()
    suspended = await agent.run(state(), events)
    await agent.run(AgentState.model_validate_json(suspended.model_dump_json()), events)
    return events


async def test_each_event_of_the_agent_has_a_class_with_exactly_its_fields() -> None:
    events = await all_of_the_agent()
    assert {event.type for event in events} == event_types().keys() - BY_THE_GATEWAY
    for event in events:
        added: dict[str, Any] = {"within": ""} if "within" not in event.payload else {}
        if event.type == "run_resumed":
            added["because"] = ""  # a gateway says it
        if event.type in ("run_finished", "subagent_finished"):
            added["models"] = []  # a gateway knows them
        assert wire(event) == {**event.payload, **added}, event.type


async def test_what_is_nested_is_typed_too() -> None:
    typed = [event.typed() for event in await all_of_the_agent()]
    (finished,) = [event for event in typed if type(event) is RunFinished]
    assert (type(finished.stop), finished.stop.hook, finished.status) == (Stop, "finish_reason", "completed")
    assert isinstance(finished.usage, Usage)
    assert isinstance(finished.spent, Spent)
    (below,) = [event for event in typed if isinstance(event, SubagentFinished)]
    assert below.within
    called = [event for event in typed if isinstance(event, ToolCallFinished)]
    assert {event.would_be.verdict for event in called if event.would_be is not None} == {"deny"}


def emitted() -> Iterator[tuple[str, set[str], bool]]:
    """Yield the type of each event that the code makes, the fields it names, and whether those are all."""
    for path in [*(REPOSITORY / "agent").rglob("*.py"), *(REPOSITORY / "gateway").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            type_ = next((one.value for one in node.args[:2] if isinstance(one, ast.Constant)), None)
            if not isinstance(type_, str):
                continue
            if node.func.id == "emit":
                names = [word.arg for word in node.keywords]
            elif node.func.id == "Event" and isinstance(node.args[1], ast.Dict):
                names = [key.value if isinstance(key, ast.Constant) else None for key in node.args[1].keys]
            else:
                continue
            yield type_, {name for name in names if name}, None not in names


def test_each_place_that_makes_an_event_names_fields_of_its_class_and_all_that_it_needs() -> None:
    places = list(emitted())
    nested = {"subagent_started", "subagent_finished"}  # renamed on their way to the parent's sink
    assert {type_ for type_, _, _ in places} == event_types().keys() - nested
    for type_, names, whole in places:
        known = {field.name: field for field in fields(event_types()[type_])}
        assert names <= known.keys(), type_
        if whole:
            Event(type_, {name: _example(type_, name) for name in names}).typed()


def _example(type_: str, name: str) -> JsonValue:
    """Return a value that fits a field."""
    examples: dict[str, JsonValue] = {"stop": {"hook": "h", "rule": "r", "reason": "why"}, "status": "failed"}
    if name in examples:
        return examples[name]
    schema = TypeAdapter(event_types()[type_]).json_schema()["properties"][name]
    kinds: dict[str, JsonValue] = {
        "string": "",
        "integer": 0,
        "number": 0.0,
        "array": [],
        "object": {},
        "boolean": False,
    }
    if "$ref" in schema:
        return {}
    return None if "anyOf" in schema else schema["enum"][0] if "enum" in schema else kinds[schema["type"]]


@pytest.mark.parametrize(
    "event, said",
    [
        (Event("nothing", {}), "no event type 'nothing'"),
        (Event("step_started", {}), "step"),
        (Event("step_started", {"step": "first"}), "step"),
    ],
)
def test_an_event_that_is_none_of_these_is_refused(event: Event, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        event.typed()


def test_a_field_of_a_newer_version_is_no_error() -> None:
    assert Event("model_delta", {"text": "a", "new": 1}).typed() == event_types()["model_delta"](text="a")  # type: ignore[call-arg]
