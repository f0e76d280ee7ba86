"""What an agent's settings say reaches the capability that they are about: seen in what a run does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from agent.agent import Agent
from agent.capabilities.flow import ErrorPolicy, FinishReason
from agent.capabilities.structured_output import StructuredOutput
from agent.capabilities.summarization import Summarizer
from agent.capabilities.tracing import Recorder
from agent.errors import ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.models.model import Model, OnDelta
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability
from gateway.agents.agents import build
from gateway.config.agent_settings import AgentSettings, CapabilitiesSettings
from gateway.config.model_settings import ModelSettings
from gateway.policy import STARTER_POLICY, load_policy
from tests.unit.agent.fakes import FakeFiles, FakeShell, ListRecorder, SaysInTurn, call, says

POLICY = load_policy(STARTER_POLICY, "starter")
_Kind = TypeVar("_Kind", bound=Hook)
READER = {"description": "reads", "system_prompt": "You read."}


class FakeWorkspace(FakeFiles, FakeShell):
    """Files and a shell."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        FakeFiles.__init__(self, files)
        FakeShell.__init__(self)


class Spends:
    """A model whose agents run commands without end, but for the one that starts a subagent and then answers."""

    name = "spends"

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.requests: list[InferenceRequest] = []

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.requests.append(request)
        if request.system_prompt == READER["system_prompt"]:
            response = says("", call("execute", "", command=f"echo {len(self.requests)}"))
            return response.model_copy(update={"usage": self.usage})
        return says("done") if len(self.requests) > 1 else _spawn()


def _spawn() -> ModelResponse:
    return says("", ToolCall(id="", name="spawn_subagent", arguments={"name": "reader", "task": "read it"}))


def _built(
    asked: Mapping[str, Any] | AgentSettings,
    *,
    model: Model | None = None,
    usual_model: ModelSettings | None = None,
    workspace: FakeWorkspace | None = None,
    recorder: Recorder | None = None,
) -> tuple[Capability, ...]:
    opened = model or SaysInTurn(says("done"))
    return build(
        asked if isinstance(asked, AgentSettings) else AgentSettings.model_validate({"capabilities": asked}),
        usual_model or ModelSettings(),
        POLICY.document,
        workspace or FakeWorkspace(),
        lambda _: opened,
        recorder,
    )


def _hook(built: tuple[Capability, ...], kind: type[_Kind]) -> _Kind:
    (hook,) = [hook for capability in built for hook in capability.hooks if isinstance(hook, kind)]
    return hook


async def _run(model: Model, capabilities: Mapping[str, Any], **given: Any) -> AgentState:
    agent = Agent(model=model, capabilities=_built(capabilities, model=model, **given))
    return await agent.run(AgentState(run_id="r1", thread="t", messages=(Message(role="user", content="do it"),)))


def _tools(request: InferenceRequest) -> set[str]:
    return {spec.name for spec in request.tools}


async def test_tracing_reports_to_the_recorder_it_was_given() -> None:
    recorder = ListRecorder()
    model = SaysInTurn(says("", call("execute", command="ls")), says("done"))
    await _run(model, {"bash": None, "tracing": None}, recorder=recorder)
    assert [span.name for span in recorder.spans] == ["chat", "execute_tool", "chat"]


async def test_nothing_is_traced_where_tracing_was_not_asked_for() -> None:
    recorder = ListRecorder()
    await _run(SaysInTurn(says("done")), {}, recorder=recorder)
    assert recorder.spans == []


@pytest.mark.parametrize(
    "asked, own, usual, window_tokens",
    [
        (9_000, 20_000, 30_000, 9_000),
        (None, 20_000, 30_000, 20_000),
        (None, None, 30_000, 30_000),
        (None, None, None, 128_000),
    ],
)
def test_the_window_to_summarise_for_is_the_asked_one_or_the_models_or_the_usual(
    asked: int | None, own: int | None, usual: int | None, window_tokens: int
) -> None:
    settings = AgentSettings(
        model=ModelSettings(context_window_tokens=own) if own else None,
        capabilities=CapabilitiesSettings.model_validate({"summarization": {"context_window_tokens": asked}}),
    )
    built = _built(settings, usual_model=ModelSettings(context_window_tokens=usual))
    assert _hook(built, Summarizer).context_window_tokens == window_tokens


async def test_the_memory_is_read_from_the_files_that_were_named() -> None:
    files = {"/workspace/AGENTS.md": b"the usual", "/workspace/a.md": b"use tabs", "/workspace/b.md": b"be brief"}
    model = SaysInTurn(says("done"))
    paths = ["/workspace/a.md", "/workspace/b.md"]
    await _run(model, {"memory": {"paths": paths}}, workspace=FakeWorkspace(files))
    prompt = model.requests[0].system_prompt
    assert ["use tabs" in prompt, "be brief" in prompt, "the usual" in prompt] == [True, True, False]


async def test_a_memory_without_settings_is_read_from_its_usual_file() -> None:
    model = SaysInTurn(says("done"))
    await _run(model, {"memory": None}, workspace=FakeWorkspace({"/workspace/AGENTS.md": b"the usual"}))
    assert "the usual" in model.requests[0].system_prompt


@pytest.mark.parametrize("rounds, revisions", [({"rounds": 1}, 1), ({"rounds": 3}, 3), ({}, 2)])
async def test_an_answer_is_revised_as_often_as_was_asked_for(rounds: dict[str, int], revisions: int) -> None:
    disapproved = says('{"approved": false, "feedback": "shorter"}')
    model = SaysInTurn(*(says("an answer"), disapproved) * 10)
    ended = await _run(model, {"self_critique": rounds})
    assert len(model.requests) == 2 * (1 + revisions)  # each answer is judged, the last one too
    assert ended.steps == 1 + revisions


async def test_an_answer_is_judged_by_the_criteria_of_the_settings() -> None:
    model = SaysInTurn(says("an answer"), says('{"approved": true}'))
    await _run(model, {"self_critique": {"criteria": "it rhymes"}})
    assert json.loads(model.requests[1].messages[0].content)["criteria"] == "it rhymes"


async def test_tools_that_are_always_shown_are_shown_and_others_are_not() -> None:
    model = SaysInTurn(says("done"))
    chosen = {"bash": None, "todos": None, "tool_registry": {"always": ["execute"]}}
    await _run(model, chosen)
    assert _tools(model.requests[0]) == {"execute", "find_tools"}


@pytest.mark.parametrize("settings, depth", [({"depth": 1}, 1), ({"depth": 2}, 2), ({"depth": 4}, 4), ({}, 3)])
async def test_subagents_are_as_deep_as_was_asked_for_and_three_deep_otherwise(
    settings: dict[str, int], depth: int
) -> None:
    model = SaysInTurn(*[_spawn()] * depth, says("done"))
    await _run(model, {"subagents": {**settings, "definitions": {"reader": READER}}})
    one_in_another = model.requests[: depth + 1]
    assert ["spawn_subagent" in _tools(request) for request in one_in_another] == [*[True] * depth, False]


@pytest.mark.parametrize(
    "budget, usage, said",
    [
        ({"steps": 2}, Usage(), "2 steps, its budget is 2"),
        ({"output_tokens": 30}, Usage(output_tokens=20), "40 output tokens, its budget is 30"),
        ({"cost_usd": 0.5}, Usage(cost_usd=0.3), "0.6 USD, its budget is 0.5"),
    ],
)
async def test_a_subagent_is_limited_to_the_budget_of_its_settings(
    budget: dict[str, float], usage: Usage, said: str
) -> None:
    model = Spends(usage)
    settings = {"bash": None, "subagents": {"definitions": {"reader": {**READER, **budget}}}}
    ended = await _run(model, settings)
    (result,) = [message.content for message in ended.messages if message.role == "tool"]
    assert said in result
    assert len(model.requests) == 2 + 2  # its parent's, and its own until the budget was spent


async def test_a_subagent_is_shown_the_tools_and_the_prompt_of_its_settings() -> None:
    model = SaysInTurn(_spawn(), says("read"), says("done"))
    reader = {**READER, "tools": ["grep", "execute"]}
    await _run(model, {"filesystem": None, "bash": None, "subagents": {"definitions": {"reader": reader}}})
    asked = model.requests[1]
    assert (asked.system_prompt, _tools(asked)) == ("You read.", {"grep", "execute"})
    shown = next(spec for spec in model.requests[0].tools if spec.name == "spawn_subagent")
    assert "reader: reads" in shown.description


@pytest.mark.parametrize("settings, retries", [({"retries": 0}, 0), ({"retries": 4}, 4), ({}, 2)])
async def test_an_answer_that_does_not_fit_is_asked_for_again_as_often_as_was_asked_for(
    settings: dict[str, int], retries: int
) -> None:
    chosen = {"structured_output": {"schema": {"type": "integer"}, **settings}}
    assert _hook(_built(chosen), StructuredOutput).retries == retries
    model = SaysInTurn(says("no number"))
    ended = await _run(model, chosen)
    assert len(model.requests) == 1 + retries
    assert ended.stop is not None
    assert (ended.stop.hook, ended.stop.rule) == ("structured_output", "retries")


@pytest.mark.parametrize("settings, timeout_s", [({"timeout_s": 45}, 45.0), ({}, 120.0)])
async def test_a_command_has_the_timeout_of_the_settings(settings: dict[str, float], timeout_s: float) -> None:
    workspace = FakeWorkspace()
    model = SaysInTurn(says("", call("execute", command="ls")), says("done"))
    await _run(model, {"bash": settings}, workspace=workspace)
    assert [asked["timeout_s"] for asked in workspace.settings] == [timeout_s]


@pytest.mark.parametrize(
    "settings",
    [
        {
            "retries": 7,
            "backoff_s": 3.5,
            "on_model_error": "continue",
            "on_tool_error": "stop",
            "on_tool_blocked": "stop",
        },
        {
            "retries": 0,
            "backoff_s": 0.25,
            "on_model_error": "stop",
            "on_tool_error": "continue",
            "on_tool_blocked": "stop",
        },
    ],
)
def test_the_flow_is_as_the_settings_say(settings: dict[str, Any]) -> None:
    policy = _hook(_built({"flow": settings}), ErrorPolicy)
    assert {name: getattr(policy, name) for name in settings} == settings


def test_the_flow_without_settings_is_the_usual_one_of_an_agent() -> None:
    settings = CapabilitiesSettings().flow.model_dump()
    assert settings.pop("on_cut_answer") == FinishReason().on_cut_answer
    usual = ErrorPolicy()
    assert settings == {name: getattr(usual, name) for name in settings}


def test_answers_that_were_cut_are_taken_where_the_settings_say_so() -> None:
    assert _hook(_built({"flow": {"on_cut_answer": "accept"}}), FinishReason).on_cut_answer == "accept"


async def test_a_model_is_asked_again_as_often_as_the_flow_says() -> None:
    model = SaysInTurn(ModelUnavailable("busy"))
    await _run(model, {"flow": {"retries": 4, "backoff_s": 0}})
    assert len(model.requests) == 1 + 4
