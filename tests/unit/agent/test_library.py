"""The agent as a library: the public names, and the short ways to an agent, its tools and its state."""

from __future__ import annotations

import ast
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from pydantic import BaseModel

import agent
from agent import Agent, AgentState, Call, Host, ScriptedModel, Tool, Turn, tool
from agent.capabilities.structured_output import structured_output
from agent.tools.tool import Capability
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, done


def test_every_public_name_is_there_and_types_are_checked_for_the_same_ones() -> None:
    source = ast.parse(Path(agent.__file__).read_text())
    imports = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    typed = {name.name: node.module for node in imports for name in node.names if node.module != "importlib"}
    assert typed == {name: f"agent.{home}" for name, home in agent._HOMES.items()}
    assert set(agent.__all__) == {name for name in typed if getattr(agent, name) is not None}


def test_there_is_no_other_public_name() -> None:
    with pytest.raises(AttributeError, match="module 'agent' has no attribute 'Nothing'"):
        agent.Nothing  # noqa: B018


def test_openai_is_imported_by_those_who_use_its_model_only() -> None:
    program = "import sys, agent; from agent import Agent, ScriptedModel, tool; assert 'openai' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_agent_takes_functions_and_tools() -> None:
    model = ScriptedModel(
        [
            Turn(expect=["2 and 3?"], calls=[Call("add", {"a": 2, "b": 3}), Call("twice", {"a": 4}), Call("any", {})]),
            Turn(expect=["5", "8", ""], say="5 and 8"),
        ]
    )

    @tool
    async def twice(a: int) -> int:
        """Double a number."""
        return 2 * a

    tools = [add, twice, Tool("any", "Do it.", AnyArguments, done)]
    final = await Agent(model=model, tools=tools).run(AgentState.start("2 and 3?"))
    assert (final.answer, model.failures) == ("5 and 8", [])
    assert [spec["function"]["name"] for spec in model.requests[0]["tools"]] == ["add", "twice", "any"]


def test_tools_come_before_those_of_the_capabilities_and_names_are_theirs_alone() -> None:
    others = Capability("others", tools=(Tool("other", "Do it.", AnyArguments, done),))
    made = Agent(model=ScriptedModel([]), tools=[add], capabilities=[others])
    assert [spec.name for spec in made.executor.specs()] == ["add", "other"]
    with pytest.raises(ValueError, match="two tools are named 'add'"):
        Agent(model=ScriptedModel([]), tools=[add, add])


def test_what_is_no_tool_is_refused_when_the_agent_is_put_together() -> None:
    with pytest.raises(TypeError, match="neither a tool nor a function"):
        Agent(model=ScriptedModel([]), tools=["add"])  # type: ignore[list-item]


def test_tools_beside_an_executor_of_the_host_are_refused_for_they_would_never_run() -> None:
    with pytest.raises(ValueError, match="the host's executor runs all tool calls"):
        Agent(model=ScriptedModel([]), tools=[add], host=Host(executor=Toolbox([])))


def test_a_state_starts_with_its_task_in_a_thread_of_its_own() -> None:
    one, other = AgentState.start("go"), AgentState.start("go")
    assert [(message.role, message.content) for message in one.messages] == [("user", "go")]
    assert len({one.run_id, other.run_id, one.thread, other.thread}) == 4
    given = AgentState.start("go", thread="t", run_id="r")
    assert (given.thread, given.run_id, given.answer) == ("t", "r", "")
    assert AgentState.model_validate_json(given.model_dump_json()) == given


def test_a_task_is_checked_as_all_that_enters_a_state() -> None:
    assert AgentState.start("half \ud800").messages[0].content == "half \ufffd"
    with pytest.raises(ValueError, match="valid string"):
        AgentState.start(7)  # type: ignore[arg-type]


class Forecast(BaseModel):
    rain: bool
    day: date = date(2026, 11, 23)


async def test_the_output_of_the_final_state_is_the_model_that_was_asked_for() -> None:
    model = ScriptedModel([Turn(say="It will rain."), Turn(expect=["does not fit"], say='{"rain": true}')])
    made = Agent(model=model, output=Forecast)
    final = await made.run(AgentState.start("How is the weather?"))
    assert (final.output, model.failures) == (Forecast(rain=True), [])
    assert "Forecast" in model.requests[0]["messages"][0]["content"]
    assert "output" not in final.model_dump()
    assert final.next_run("r2", "And now?").output is None


async def test_an_output_may_be_a_json_schema_and_there_is_none_without_an_answer_that_fits() -> None:
    model = ScriptedModel([Turn(say="7"), Turn(say="seven"), Turn(say="VII"), Turn(say="still seven")])
    made = Agent(model=model, output={"type": "integer"})
    first = await made.run(AgentState.start("3 + 4?"))
    assert first.output == 7
    second = await made.run(first.next_run("r2", "And in words?").with_(output=first.output))
    assert second.output is None
    assert second.stop is not None
    assert second.stop.hook == "structured_output"


def test_an_output_beside_the_capability_is_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        Agent(model=ScriptedModel([]), output=Forecast, capabilities=[structured_output(Forecast)])
