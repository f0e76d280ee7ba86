"""One answer of a real server: text, tool calls and usage, streamed and at once."""

from __future__ import annotations

import asyncio

import pytest

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall
from tests.models.asking import CLOCK, WEATHER, ask, model_of, request
from tests.models.servers import LLAMA_SERVER, ModelServer

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "at-once"])


@BOTH
async def test_an_answer_arrives_with_its_usage(server: ModelServer, stream: bool) -> None:
    pieces: list[str] = []
    response = await ask(model_of(server, stream=stream), request("Name three colours."), pieces.append)
    assert response.message.content == "".join(pieces)
    assert response.message.content.strip()
    assert response.finish_reason in ("stop", "length")
    assert (len(pieces) > 1) is stream
    assert 5 < response.usage.input_tokens < 200  # llama-cpp-python's, in a stream, are an estimate
    assert 0 < response.usage.output_tokens < 50


async def test_a_streamed_answer_is_the_one_that_comes_at_once(server: ModelServer) -> None:
    streamed, at_once = [
        await ask(model_of(server, stream=stream), request("What is the capital of France?"))
        for stream in (True, False)
    ]
    assert streamed.message == at_once.message
    assert streamed.finish_reason == at_once.finish_reason


async def test_an_answer_that_reaches_its_limit_says_so(server: ModelServer) -> None:
    response = await ask(model_of(server, max_output_tokens=3), request("Count from one to a hundred, in words."))
    assert response.finish_reason == "length"


@BOTH
async def test_a_call_has_arguments_that_fit_its_schema(server: ModelServer, stream: bool) -> None:
    model = model_of(server, stream=stream, tool_choice=server.choice("weather"), max_output_tokens=200)
    response = await ask(model, request("How will the weather be in Paris?", tools=(WEATHER, CLOCK)))
    assert response.finish_reason == "tool_calls"
    (call,) = response.message.tool_calls
    assert call.id
    assert call.name == "weather"
    assert call.arguments is not None
    assert {name: type(value) for name, value in call.arguments.items()} == {"city": str, "days": int}
    assert response.usage.output_tokens > 0


async def test_a_history_with_calls_and_results_is_taken(server: ModelServer) -> None:
    call = ToolCall(id="call_1", name="weather", arguments={"city": "Paris", "days": 1})
    odd = ToolCall(id="call_2", name="no such tool!", arguments=None, raw_arguments="{broken")
    history = (
        Message(role="user", content="How will the weather be in Paris?"),
        Message(role="assistant", content="I look it up.", tool_calls=(call, odd)),
        Message(role="tool", tool_call_id="call_1", content="21 degrees, sunny"),
        Message(role="tool", tool_call_id="call_2", content="there is no such tool"),
        Message(role="assistant"),
        Message(role="user", content="So, how will it be?"),
    )
    response = await ask(model_of(server), InferenceRequest("Be brief.", history, (WEATHER,)))
    assert response.message.content or response.message.tool_calls


async def test_two_requests_at_once_are_both_answered(server: ModelServer) -> None:
    asked = [request("Name three colours."), request("What is the capital of France?")]
    together = await asyncio.gather(*(ask(model_of(server), one) for one in asked))
    alone = [await ask(model_of(server), one) for one in asked]
    assert all(response.message.content.strip() for response in together)
    # llama-server computes both in one batch, which may round otherwise.
    if server.name != LLAMA_SERVER:
        assert [response.message for response in together] == [response.message for response in alone]


async def test_a_model_that_the_server_does_not_have_is_answered_by_the_one_that_it_has(server: ModelServer) -> None:
    response = await ask(model_of(server, name="no-such-model"), request("Name three colours."))
    assert response.message.content.strip()


@BOTH
async def test_the_responses_api_answers_and_calls_tools(llama_server: ModelServer, stream: bool) -> None:
    pieces: list[str] = []
    model = model_of(llama_server, stream=stream, api="responses", max_output_tokens=100)
    said = await ask(model, request("Name three colours."), pieces.append)
    assert said.message.content == "".join(pieces)
    assert said.message.content.strip()
    assert said.usage.estimated_tokens == 0
    model = model_of(llama_server, stream=stream, api="responses", max_output_tokens=100)
    called = await ask(model, request("How will the weather be in Paris?", tools=(WEATHER,)))
    (call,) = called.message.tool_calls
    assert set(call.arguments or {}) == {"city", "days"}
