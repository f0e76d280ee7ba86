"""What a request says by its settings, and what the driver learns about an endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import JsonValue

from agent.agent import Agent
from agent.errors import ModelRefused
from agent.messages import Message, ToolCall, ToolSpec
from agent.models.chat_request import request_body
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from agent.models.settings import RequestSettings
from agent.state import AgentState
from tests.unit.agent.models.asking import BOTH, REQUEST, completion
from tests.unit.agent.models.raw_endpoint import answering, serving

SCHEMA: dict[str, JsonValue] = {"type": "object"}
ASKED = replace(REQUEST, tools=(ToolSpec("ls", "lists", SCHEMA),), output_schema=SCHEMA, thread="t1")
ONLY_WITH_TOOLS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    ({"tool_choice": "ls"}, {"tool_choice": {"type": "function", "function": {"name": "ls"}}}),
    ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
)


def model_at(server: ScriptedModelServer, *, stream: bool = True, **settings: Any) -> OpenAIModel:
    return OpenAIModel("m", base_url=server.base_url, api_key="k", stream=stream, settings=RequestSettings(**settings))


def refuses(parameter: str) -> Fault:
    error = {"message": f"Unsupported parameter: '{parameter}' is not supported with this model.", "param": parameter}
    return Fault("status", status=400, body={"error": {**error, "code": "unsupported_parameter"}})


@pytest.mark.parametrize(
    "settings, sent",
    [
        ({}, {}),
        ({"max_output_tokens": 100}, {"max_tokens": 100}),
        ({"max_output_tokens": 9, "max_tokens_name": "max_completion_tokens"}, {"max_completion_tokens": 9}),
        ({"max_output_tokens": 100, "extra": {"max_tokens": 7, "temperature": 0}}, {"max_tokens": 7, "temperature": 0}),
        ({"max_output_tokens": 100, "extra": {"max_completion_tokens": 7}}, {"max_completion_tokens": 7}),
        ({"temperature": 0.0, "top_p": 0.5, "seed": 0}, {"temperature": 0.0, "top_p": 0.5, "seed": 0}),
        ({"stop": ("a", "b"), "reasoning_effort": "low"}, {"stop": ["a", "b"], "reasoning_effort": "low"}),
        ({"temperature": 1, "extra": {"temperature": 0.1, "top_k": 9}}, {"temperature": 0.1, "top_k": 9}),
        ({"prompt_cache": "prompt_cache_key"}, {"prompt_cache_key": hashlib.sha256(b"t1").hexdigest()[:32]}),
        ({"response_format": "json_object"}, {"response_format": {"type": "json_object"}}),
        (
            {"response_format": "json_schema"},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        *ONLY_WITH_TOOLS,
    ],
)
@BOTH
async def test_a_request_says_what_the_settings_say_and_nothing_else(stream: bool, settings: Any, sent: Any) -> None:
    async with ScriptedModelServer([Turn(say="hi")]) as server, model_at(server, stream=stream, **settings) as model:
        await model.infer(ASKED, no_deltas)
    usual = {"model", "messages", "stream", "stream_options", "tools"}
    assert {name: value for name, value in server.requests[0].items() if name not in usual} == sent


@pytest.mark.parametrize("settings", [settings for settings, _ in ONLY_WITH_TOOLS])
def test_what_is_about_tools_is_sent_only_with_tools(settings: Any) -> None:
    assert request_body("m", REQUEST, RequestSettings(**settings)).keys() == {"model", "messages"}


def test_a_response_format_is_asked_for_only_where_a_schema_is_known() -> None:
    body = request_body("m", REQUEST, RequestSettings(response_format="json_schema"))
    assert body.keys() == {"model", "messages"}


@pytest.mark.parametrize("first", ["max_tokens", "max_completion_tokens"])
@BOTH
async def test_an_endpoint_that_names_the_bound_otherwise_is_asked_once_and_remembered(
    stream: bool, first: str
) -> None:
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[first]
    named = {} if first == "max_tokens" else {"max_tokens_name": first}
    async with (
        ScriptedModelServer([Turn(say="hi", fault=refuses(first))]) as server,
        model_at(server, stream=stream, max_output_tokens=5, **named) as model,
    ):
        for _ in range(2):
            assert (await model.infer(REQUEST, no_deltas)).message.content == "hi"
    assert [{first, other} & request.keys() for request in server.requests] == [{first}, {other}, {other}]


@BOTH
async def test_an_endpoint_that_takes_neither_name_is_asked_twice(stream: bool) -> None:
    class Neither(ScriptedModelServer):
        def play(self, request: dict[str, Any], size_bytes: int) -> Any:
            super().play(request, size_bytes)
            name = next(name for name in ("max_tokens", "max_completion_tokens") if name in request)
            return refuses(name)

    async with Neither([Turn()]) as server, model_at(server, stream=stream, max_output_tokens=5) as model:
        with pytest.raises(ModelRefused, match="max_completion_tokens"):
            await model.infer(REQUEST, no_deltas)
    assert len(server.requests) == 2


async def test_an_endpoint_that_cannot_count_in_a_stream_is_asked_without_and_its_usage_estimated() -> None:
    async with (
        ScriptedModelServer([Turn(say="hi", fault=refuses("stream_options"))]) as server,
        model_at(server) as model,
    ):
        answers = [await model.infer(REQUEST, no_deltas) for _ in range(2)]
    assert ["stream_options" in request for request in server.requests] == [True, False, False]
    assert all(answer.usage.input_tokens > 0 for answer in answers)


async def test_a_parameter_that_was_not_sent_is_not_given_another_name() -> None:
    async with ScriptedModelServer([Turn(say="hi", fault=refuses("max_tokens"))]) as server, model_at(server) as model:
        with pytest.raises(ModelRefused, match="max_tokens"):
            await model.infer(REQUEST, no_deltas)


# --- prompt caches: a request begins with the bytes of the request before it ---


def _thread(steps: int) -> tuple[Message, ...]:
    said = [Message(role="user", content="go")]
    for step in range(steps):
        call = ToolCall(id=f"call_{step}", name="ls", arguments={"path": f"/{step}", "b": 1, "a": 2})  # type: ignore[arg-type]
        said.append(Message(role="assistant", content=f"step {step}", tool_calls=(call,)))
        said.append(Message(role="tool", content=f"result {step}", tool_call_id=call.id))
    return tuple(said)


def _without_marks(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message["content"], list):
        return dict(message)
    parts = [{name: value for name, value in part.items() if name != "cache_control"} for part in message["content"]]
    return {**message, "content": parts}


@pytest.mark.parametrize("prompt_cache", [None, "prompt_cache_key", "cache_control"])
def test_the_bytes_of_a_request_begin_with_those_of_the_request_before(prompt_cache: Any) -> None:
    settings = RequestSettings(prompt_cache=prompt_cache, temperature=0)
    before = b""
    for steps in range(6):
        body = request_body("m", replace(ASKED, messages=_thread(steps)), settings)
        messages = [_without_marks(message) for message in body.pop("messages")]
        bare = {name: value for name, value in body.items() if name not in ("tools", "model")}
        sent = json.dumps([bare, body["tools"], messages]).encode()[:-2]  # up to the brackets at the end
        assert sent.startswith(before)
        before = sent


def test_what_one_request_marks_last_the_next_one_marks_too() -> None:
    settings, marked = RequestSettings(prompt_cache="cache_control"), []
    for steps in range(4):
        messages = request_body("m", replace(ASKED, messages=_thread(steps)), settings)["messages"]
        marked.append([at for at, one in enumerate(messages) if "cache_control" in one["content"][-1]])
    assert marked == [[0, 1], [0, 1, 3], [0, 3, 5], [0, 5, 7]]


def test_a_tool_call_without_text_is_not_marked() -> None:
    thread = (*_thread(0), Message(role="assistant", tool_calls=(ToolCall(id="c", name="ls", arguments=None),)))
    body = request_body("m", replace(ASKED, messages=thread), RequestSettings(prompt_cache="cache_control"))
    assert body["messages"][-1]["content"] == ""


async def test_a_run_sends_a_stable_prefix_from_step_to_step() -> None:
    def look(path: str) -> str:
        """Look at a path."""
        return f"nothing at {path}"

    turns = [Turn(calls=[Call("look", {"path": f"/{step}"})]) for step in range(5)]
    async with ScriptedModelServer([*turns, Turn(say="done")]) as server, model_at(server) as model:
        await Agent(model=model, tools=[look]).run(AgentState.start("look around"))
    sent = [json.dumps([request["tools"], request["messages"]])[:-2] for request in server.requests]
    assert len(sent) == 6
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(sent))


@pytest.mark.parametrize("parameter", ["max_tokens", "stream_options"])
async def test_requests_at_the_same_time_are_all_asked_again(parameter: str) -> None:
    """The second refusal arrives when the first one has been learned from."""
    both = asyncio.Barrier(2)

    async def refused(writer: asyncio.StreamWriter) -> None:
        await both.wait()
        said = {"error": {"message": f"Unsupported parameter: '{parameter}'", "code": "unsupported_parameter"}}
        await answering(said, 400)(writer)

    async with serving(refused, refused, answering(completion({"content": "hi"}))) as endpoint:
        settings = RequestSettings(max_output_tokens=5)
        async with OpenAIModel("m", base_url=endpoint.base_url, api_key="", settings=settings) as model:
            asked = [model.infer(REQUEST, no_deltas) for _ in range(2)]
            answers = await asyncio.gather(*asked)
    assert [answer.message.content for answer in answers] == ["hi", "hi"]
    assert [parameter in body for _, _, body in endpoint.requests] == [True, True, False, False]
