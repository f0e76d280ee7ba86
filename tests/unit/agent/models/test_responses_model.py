"""The real client on the Responses API: of the scripted server, and of endpoints that send something else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from agent.models.settings import Api, RequestSettings
from agent.state import AgentState, ModelResponse
from tests.unit.agent.fakes import Events, FakeFiles, allowing, state
from tests.unit.agent.models.asking import AFTER_TOOLS, BOTH, REQUEST, Deltas, ask_at
from tests.unit.agent.models.raw_endpoint import SSE, answering, serving

APIS = pytest.mark.parametrize("api", ["chat_completions", "responses"])


RESPONSES = RequestSettings(api="responses")


async def ask(turn: Turn, *, deltas: Deltas | None = None, api: Api = "responses", stream: bool) -> ModelResponse:
    async with ScriptedModelServer([turn]) as server:
        known: dict[str, Any] = {"api_key": "sk-secret", "settings": RequestSettings(api=api)}
        async with OpenAIModel("m", base_url=server.base_url, stream=stream, **known) as model:
            return await model.infer(REQUEST, deltas or no_deltas)


async def ask_raw(body: Any, *, event_stream: bool = False, **options: Any) -> ModelResponse:
    headers = {"content_type": SSE["content-type"]} if event_stream else {}
    async with serving(answering(body, **headers)) as endpoint:
        return await ask_at(endpoint.base_url, settings=RESPONSES, **options)


def sse(*events: dict[str, Any]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


@BOTH
@APIS
async def test_text_reasoning_and_usage_arrive_by_either_api(api: Api, stream: bool) -> None:
    deltas = Deltas()
    turn = Turn(reasoning="I think about it for long.", say="a long enough answer é")
    response = await ask(turn, deltas=deltas, api=api, stream=stream)
    assert response.message.content == "".join(deltas.text) == turn.say
    assert "".join(deltas.reasoning) == turn.reasoning
    assert (len(deltas.text) > 1, len(deltas.reasoning) > 1) == (stream, stream)
    assert response.finish_reason == "stop"
    assert response.usage.output_tokens > len(turn.reasoning) // 4


@BOTH
async def test_parallel_calls_are_put_together(stream: bool) -> None:
    calls = [Call("ls", {"path": "a"}), Call("ls", {"path": "b"}), Call("read_file", '{"broken')]
    response = await ask(Turn(say="I look.", calls=calls), stream=stream)
    found = [(call.name, call.arguments) for call in response.message.tool_calls]
    assert found == [("ls", {"path": "a"}), ("ls", {"path": "b"}), ("read_file", None)]
    assert response.finish_reason == "tool_calls"


@BOTH
@pytest.mark.parametrize(
    "fault, error, said",
    [
        (Fault("drop"), ModelUnavailable, "127.0.0.1"),
        (Fault("nonsense"), ModelNonsense, "not JSON"),
        (Fault("empty"), ModelNonsense, "nothing|empty"),
        (Fault("status", status=400, body={"error": {"message": "Unknown parameter"}}), ModelRefused, "Unknown"),
        (Fault("status", status=404, body="404 page not found"), ModelRefused, "check base_url"),
    ],
)
async def test_each_fault_is_one_clear_error(fault: Fault, error: type[ModelError], said: str, stream: bool) -> None:
    with pytest.raises(error, match=said) as raised:
        await ask(Turn(fault=fault), stream=stream)
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "event, error, said",
    [
        ({"type": "error", "code": "server_error", "message": "Oh no."}, ModelUnavailable, "Oh no"),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "Slow."}}},
            ModelUnavailable,
            "Slow",
        ),
        ({"type": "response.failed", "response": {"status": "failed"}}, ModelUnavailable, "does not say which"),
        ({"type": "response.incomplete", "response": {"incomplete_details": {}}}, None, ""),
    ],
)
async def test_an_answer_that_fails_after_its_beginning_says_why(
    event: dict[str, Any], error: type[ModelError] | None, said: str
) -> None:
    text = {"type": "response.output_text.delta", "delta": "I was", "output_index": 0}
    if error is None:
        assert (await ask_raw(sse(text, event), event_stream=True)).finish_reason == "length"
        return
    with pytest.raises(error, match=said) as raised:
        await ask_raw(sse(text, event), event_stream=True)
    assert raised.value.usage is not None


async def test_an_endpoint_that_streams_although_not_asked_and_one_that_does_not_are_understood() -> None:
    text = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [text]}}
    assert (await ask_raw(sse(end), event_stream=True, stream=False)).message.content == "hi"
    assert (await ask_raw(end["response"], stream=True)).message.content == "hi"


async def test_after_tool_calls_an_empty_answer_is_valid() -> None:
    nothing = {"status": "completed", "output": []}
    assert (await ask_raw(nothing, stream=False, request=AFTER_TOOLS)).message.content == ""
    with pytest.raises(ModelNonsense, match="empty answer"):
        await ask_raw(nothing, stream=False)


async def test_a_model_that_does_not_reason_is_asked_again_without_what_it_does_not_take() -> None:
    refused = {"error": {"message": "Encrypted content is not supported with this model.", "param": "include"}}
    text = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [text]}}
    good = answering(sse(end), content_type="text/event-stream")
    async with serving(answering(refused, 400), good) as endpoint:
        async with OpenAIModel("m", base_url=endpoint.base_url, api_key="k", settings=RESPONSES) as model:
            for _ in range(2):
                assert (await model.infer(REQUEST, no_deltas)).message.content == "hi"
        assert ["include" in body for _, _, body in endpoint.requests] == [True, False, False]


STEPS = [
    Turn(reasoning="First I look.", say="I look.", calls=[Call("ls", {"path": "/"}), Call("ls", {"path": "/a"})]),
    Turn(reasoning="Then I read.", calls=[Call("read_file", {"path": "/a/b"})]),
    Turn(expect=["some"], reasoning="Now I know.", say="It is done."),
    Turn(say="Again."),
]


async def run_steps(
    server: ScriptedModelServer, events: Events, settings: RequestSettings = RESPONSES, *, stream: bool = True
) -> AgentState:
    files = FakeFiles()
    files.files["/a/b"] = b"some text"
    async with OpenAIModel("m", base_url=server.base_url, api_key="k", stream=stream, settings=settings) as model:
        agent = Agent(model=model, capabilities=(filesystem(files), flow(backoff_s=0)), hooks=(allowing(),))
        end = await agent.run(state(), events)
        # As a thread is stored, and as another process continues it.
        stored = AgentState.model_validate_json(end.model_dump_json())
        return await agent.run(stored.next_run("r2", "and again"), events)


@BOTH
async def test_reasoning_items_come_back_unchanged_in_a_run_with_tools(stream: bool) -> None:
    events = Events()
    async with ScriptedModelServer(STEPS) as server:
        end = await run_steps(server, events, stream=stream)
        assert (end.answer, server.failures) == ("Again.", [])
        last = server.requests[-1]["input"]
    kinds = [item.get("type") or item["role"] for item in last]
    call, result = "function_call", "function_call_output"
    first, second = ("reasoning", "message", call, call, result, result), ("reasoning", call, result)
    assert kinds == ["user", *first, *second, "reasoning", "message", "user"]
    reasoning = [item for item in last if item.get("type") == "reasoning"]
    assert reasoning == [
        {
            "id": f"rs_{at}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": turn.reasoning}],
            "encrypted_content": f"sealed:{at}:{len(turn.reasoning)}",
        }
        for at, turn in enumerate(STEPS[:3])
    ]
    # What is sent grows at its end only, so that an endpoint's cache of prompts can work.
    for earlier, later in zip(server.requests, server.requests[1:], strict=False):
        assert json.dumps(later["input"]).startswith(json.dumps(earlier["input"])[:-1])
        assert {**later, "input": 0} == {**earlier, "input": 0}
    thoughts = "".join(str(payload["text"]) for payload in events.of("reasoning_delta"))
    assert thoughts == "".join(turn.reasoning for turn in STEPS)


async def test_reasoning_of_chat_completions_goes_back_with_tool_calls() -> None:
    async with ScriptedModelServer(STEPS) as server:
        await run_steps(server, Events(), RequestSettings())
        said = [message for message in server.requests[-1]["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in said] == ["First I look.", "Then I read.", None]


@APIS
async def test_no_reasoning_is_sent_or_kept_where_it_is_not_wanted(api: Api) -> None:
    async with ScriptedModelServer(STEPS) as server:
        end = await run_steps(server, Events(), RequestSettings(api=api, send_reasoning=False))
        sent = json.dumps(server.requests)
    assert not any(thought in sent for thought in ("First I look", "sealed", "encrypted"))
    assert all(message.provider_data is None for message in end.messages)


async def test_another_model_gets_no_reasoning_of_the_first() -> None:
    async with ScriptedModelServer(STEPS) as server:
        end = await run_steps(server, Events())
        async with OpenAIModel("other", base_url=server.base_url, api_key="k", settings=RESPONSES) as other:
            agent = Agent(model=other, hooks=(allowing(),))
            server._by_model["other"] = (Turn(), Turn(), Turn(), Turn(), Turn(say="New."))
            await agent.run(end.next_run("r3", "go on"), Events())
    assert not any(item.get("type") == "reasoning" for item in server.requests[-1]["input"])
