"""What endpoints send besides good answers, and what users read of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.models.chat_request import request_body
from agent.models.settings import Connection
from agent.state import ModelResponse
from tests.unit.agent.models.asking import AFTER_TOOLS, BOTH, ask_at, chunk, completion, sse
from tests.unit.agent.models.raw_endpoint import SSE, answering, head, serving

LOGIN = "<!DOCTYPE html><html><head><style>p{}</style><title>Corp</title></head><body><p>Sign in</p></body></html>"


async def ask(body: Any, status: int = 200, *, event_stream: bool = False, **options: Any) -> ModelResponse:
    headers = {"content_type": SSE["content-type"]} if event_stream else {}
    async with serving(answering(body, status, **headers)) as endpoint:
        return await ask_at(endpoint.base_url, **options)


async def failure(error: type[ModelError], body: Any, status: int = 200, **options: Any) -> ModelError:
    with pytest.raises(error) as raised:
        await ask(body, status, **options)
    assert type(raised.value) is error
    return raised.value


# --- the thread as it is sent ---


def test_content_is_a_text_beside_tool_calls_and_never_empty_without_them() -> None:
    thread = (*AFTER_TOOLS.messages, Message(role="assistant"), Message(role="user", content="and now?"))
    messages = request_body("m", InferenceRequest("", thread, ()))["messages"]
    assert messages[1]["content"] == ""
    assert messages[1]["tool_calls"]
    assert messages[3] == {"role": "assistant", "content": "(no text)"}
    assert all(isinstance(message["content"], str) for message in messages)


async def test_a_thread_with_tool_calls_suits_a_server_that_wants_each_content_to_be_a_text() -> None:
    """As llama-cpp-python does: null and a missing key are a 500 with the text of its validation."""

    async def strict(writer: asyncio.StreamWriter) -> None:
        messages = endpoint.requests[-1][2]["messages"]
        fits = all(isinstance(message.get("content"), str) for message in messages)
        wrong = {"error": {"message": "[{'type': 'missing', 'loc': ('body', 'messages')}]", "type": "internal"}}
        await (answering(sse("fine")) if fits else answering(wrong, 500))(writer)

    async with serving(strict) as endpoint:
        assert (await ask_at(endpoint.base_url, request=AFTER_TOOLS)).message.content == "fine"


async def test_a_request_that_a_server_cannot_validate_is_not_sent_again_and_said_in_short() -> None:
    errors = [{"type": "missing", "loc": ["body", "messages", n], "msg": "Field required"} for n in range(100)]
    error = await failure(ModelRefused, {"error": {"message": json.dumps(errors)}}, 500)
    assert len(str(error)) < 1500


async def test_a_query_in_the_base_url_stays_a_query() -> None:
    async with serving(answering(sse("hi"))) as endpoint:
        await ask_at(f"{endpoint.base_url}?api-version=2024-10-21&k=a%2Fb")
        assert endpoint.requests[0][0] == "POST /v1/chat/completions?api-version=2024-10-21&k=a%2Fb HTTP/1.1"


async def test_credentials_in_the_base_url_are_not_shown() -> None:
    async with serving(answering({"error": {"message": "no: query-secret, pass-secret, sk-secret"}}, 400)) as endpoint:
        base_url = endpoint.base_url.replace("http://", "http://user:pass-secret@") + "?key=query-secret"
        with pytest.raises(ModelRefused) as raised:
            await ask_at(base_url)
    assert "-secret" not in str(raised.value)


# --- streams ---


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_all_of_a_legal_event_stream_is_understood(end: str) -> None:
    lines = [
        "\ufeff: hello",
        "",
        "retry: 3000",
        "",
        "id: 1",
        ": ping",
        "",
        "event: message",
        f"data:{chunk({'content': 'on'})}",
        "id",
        "",
        'data: {"choices": [{"index": 0,',
        'data: "delta": {"content": "e"}, "finish_reason": "stop"}]}',
        "",
        "data: [DONE]",
    ]
    assert (await ask(end.join(lines), event_stream=True)).message.content == "one"


async def test_bytes_of_a_stream_may_come_one_by_one() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(head(content_type="text/event-stream"))
        for byte in sse("h\u00e9llo").replace("\n", "\r\n").encode():
            writer.write(bytes([byte]))
            await writer.drain()

    async with serving(slowly) as endpoint:
        assert (await ask_at(endpoint.base_url)).message.content == "h\u00e9llo"


async def test_a_stream_that_ends_with_done_and_no_finish_reason_is_whole() -> None:
    said, done = f"data: {chunk({'content': 'hi'})}\n\n", "data: [DONE]\n\n"
    streamed, whole = await ask(said + done), await ask(completion({"content": "hi"}, None, None), stream=False)
    assert streamed.message.content == whole.message.content == "hi"
    assert streamed.finish_reason == whole.finish_reason == ""
    error = await failure(ModelUnavailable, said)
    assert "before the answer was complete" in str(error)


async def test_where_a_stream_is_empty_the_whole_answer_is_asked_for() -> None:
    """llama-cpp-python's is for tools without a tool_choice that names one."""
    empty = answering("", content_type=SSE["content-type"])
    async with serving(empty, answering(completion({"content": "hi"}))) as endpoint:
        assert (await ask_at(endpoint.base_url)).message.content == "hi"
    assert [body["stream"] for *_, body in endpoint.requests] == [True, False]
    assert [body.get("stream_options") for *_, body in endpoint.requests] == [{"include_usage": True}, None]


async def test_an_error_that_came_too_late_for_a_stream_is_learned_by_asking_again() -> None:
    """llama-cpp-python's stream is empty if the messages are too long."""
    said = "This model's maximum context length is 4096 tokens. However, you requested 9014 tokens"
    error = {"error": {"message": said, "type": "invalid_request_error", "code": "context_length_exceeded"}}

    async def closing(writer: asyncio.StreamWriter) -> None:
        writer.close()

    empty = answering("", content_type=SSE["content-type"])
    async with serving(empty, closing, answering(error, 400)) as endpoint:
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 4096 tokens"):
            await ask_at(endpoint.base_url)
    async with serving(empty, closing) as endpoint:
        with pytest.raises(ModelUnavailable, match="dropped the connection"):
            await ask_at(endpoint.base_url)
    assert len(endpoint.requests) == 3


@BOTH
async def test_an_endpoint_that_streams_or_not_as_it_likes_is_understood(stream: bool) -> None:
    assert (await ask(completion({"content": "whole"}), stream=stream)).message.content == "whole"
    assert (await ask(sse("streamed"), stream=stream)).message.content == "streamed"
    indented = json.dumps(json.loads(completion({"content": "indented"})), indent=2)
    assert (await ask(indented, stream=stream)).message.content == "indented"


# --- answers ---


@BOTH
async def test_an_empty_answer_after_tools_did_the_work_is_the_end_of_the_work(stream: bool) -> None:
    for said in ({"content": ""}, {"content": None, "reasoning_content": "done, I think"}):
        body = f"data: {chunk(said, 'stop')}\n\ndata: [DONE]\n\n" if stream else completion(said)
        response = await ask(body, stream=stream, request=AFTER_TOOLS)
        assert (response.message.content, response.message.tool_calls) == ("", ())


@BOTH
async def test_an_empty_answer_to_a_task_is_none_and_is_paid_for(stream: bool) -> None:
    reported = {"prompt_tokens": 59_000, "completion_tokens": 3}
    body = completion({"content": None}, reported)
    if stream:
        body = f"data: {chunk({}, 'stop')}\n\ndata: {json.dumps({'choices': [], 'usage': reported})}\n\n"
    error = await failure(ModelNonsense, body, stream=stream)
    assert "an empty answer (finish reason stop)" in str(error)
    assert error.usage == Usage(input_tokens=59_000, output_tokens=3)


@BOTH
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_without_an_answer_is_said_to_be_that(stream: bool, name: str) -> None:
    said = {name: "x" * 4000}
    body = f"data: {chunk(said, 'stop')}\n\n" if stream else completion({"content": None, **said})
    error = await failure(ModelNonsense, body, stream=stream)
    assert "4,000 characters of reasoning and no answer" in str(error)
    assert error.usage is not None
    assert error.usage.output_tokens == 1000


@BOTH
async def test_a_refusal_is_an_answer_with_a_finish_reason_of_its_own(stream: bool) -> None:
    said = {"content": None, "refusal": "I cannot help with that."}
    body = f"data: {chunk(said)}\n\ndata: {chunk({}, 'stop')}\n\n" if stream else completion(said)
    response = await ask(body, stream=stream)
    assert (response.message.content, response.finish_reason) == ("I cannot help with that.", "refusal")


@BOTH
async def test_content_as_a_list_of_parts_is_its_text(stream: bool) -> None:
    parts = [
        {"type": "thinking", "thinking": [{"text": "hm"}]},
        {"type": "text", "text": "one "},
        "two",
        3,
        {"text": 4},
    ]
    body = f"data: {chunk({'content': parts}, 'stop')}\n\n" if stream else completion({"content": parts})
    assert (await ask(body, stream=stream)).message.content == "one two"


ODD: list[Any] = [
    [],
    "text",
    3,
    None,
    {"choices": "none"},
    {"choices": [None]},
    {"choices": [3]},
    {"choices": [{"message": 3, "finish_reason": ["stop"]}]},
    {"choices": [{"message": {"content": 3, "tool_calls": "none", "reasoning": []}}]},
    {"choices": [{"message": {"tool_calls": [3, None]}}], "usage": []},
]


@BOTH
@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
async def test_json_of_another_shape_is_one_clear_error(stream: bool, odd: Any) -> None:
    document = json.dumps(odd)
    await failure(ModelNonsense, f"data: {document}\n\ndata: [DONE]\n\n" if stream else document, stream=stream)


async def test_a_finish_reason_is_short_and_can_be_stored() -> None:
    response = await ask(completion({"content": "hi"}, finish_reason="\ud800" + "x" * 100_000), stream=False)
    assert response.finish_reason == "\ufffd" + "x" * 63


async def test_parts_of_a_call_that_are_of_another_type_are_kept_as_their_text() -> None:
    calls = [{"id": 7, "function": {"name": "ls", "arguments": {"path": "."}}}]
    (call,) = (await ask(completion({"tool_calls": calls}), stream=False)).message.tool_calls
    assert call == ToolCall(id="7", name="ls", arguments={"path": "."}, raw_arguments='{"path": "."}')


# --- the endpoint's words ---


WORDS = [
    ({"error": {"message": "Insufficient credits", "code": 402}}, ModelRefused, "Insufficient credits"),
    ({"error": {"message": "slow down", "code": "429"}}, ModelUnavailable, "slow down"),
    ({"error": {"message": "bad key", "code": 401}}, ModelRefused, "check the API key"),
    ({"error": "model not loaded"}, ModelUnavailable, "model not loaded"),
    ({"object": "error", "message": "no such model", "code": 404}, ModelRefused, "no such model"),
    ({"detail": "Not authenticated"}, ModelUnavailable, "Not authenticated"),
    ({"detail": [{"loc": ["body"], "msg": "odd"}]}, ModelUnavailable, "odd"),
    ({"message": "quota of the day is used"}, ModelUnavailable, "quota of the day is used"),
    ({"error": {"message": "no", "type": "invalid_request_error"}}, ModelRefused, "does not accept this request"),
    ({"error": {"message": "failed", "metadata": {"raw": "upstream is down"}}}, ModelUnavailable, "upstream is down"),
    ({"choices": [{"error": {"message": "upstream broke", "code": 502}}]}, ModelUnavailable, "upstream broke"),
    ({"error": {"code": 400, "message": "the request exceeds the available context size"}}, ContextLengthExceeded, ""),
]


@BOTH
@pytest.mark.parametrize("said, error, words", WORDS)
async def test_an_error_with_status_200_is_reported_in_the_endpoints_words(
    stream: bool, said: Any, error: type[ModelError], words: str
) -> None:
    raised = await failure(error, said, stream=stream)
    assert words in str(raised)
    assert "set stream to false" not in str(raised)
    assert words in str(await failure(error, f"data: {json.dumps(said)}\n\n", event_stream=True, stream=stream))


@pytest.mark.parametrize("event", ["error: %s\n\n", "event: error\ndata: %s\n\n", "error: %s"])
async def test_an_event_that_is_an_error_is_reported_in_the_endpoints_words(event: str) -> None:
    overflow = {"code": 400, "message": "the request exceeds the available context size, try increasing it"}
    await failure(ContextLengthExceeded, event % json.dumps({"error": overflow}), event_stream=True)
    await failure(ContextLengthExceeded, event % json.dumps(overflow), event_stream=True)
    assert "it broke" in str(await failure(ModelUnavailable, event % "it broke", event_stream=True))


@BOTH
async def test_a_login_page_is_refused_and_shown_without_its_tags(stream: bool) -> None:
    error = await failure(ModelRefused, LOGIN, stream=stream)
    assert "an HTML page and no answer: 'Corp Sign in'; check base_url" in str(error)
    assert "answered HTTP 503: Corp Sign in" in str(await failure(ModelUnavailable, LOGIN, 503, stream=stream))


@BOTH
async def test_other_text_is_quoted_bounded_and_without_the_key(stream: bool) -> None:
    error = await failure(ModelNonsense, "upstream of sk-secret is away " + "x" * 100_000, stream=stream)
    assert "not JSON: 'upstream of [the API key] is away xxx" in str(error)
    assert len(str(error)) < 1000
    assert "an empty body" in str(await failure(ModelNonsense, "", stream=stream))


async def test_text_in_place_of_the_rest_of_a_stream_is_quoted() -> None:
    error = await failure(ModelNonsense, f"data: {chunk({'content': 'hi'})}\n\nInternal Server Error")
    assert "ended with 'Internal Server Error'" in str(error)


@pytest.mark.parametrize(
    "said",
    [
        {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"},
        {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": None},
    ],
)
async def test_an_account_without_credit_is_not_asked_again(said: Any) -> None:
    error = await failure(ModelRefused, {"error": said}, 429)
    assert "You exceeded your current quota" in str(error)
    assert "no credit left" in str(error)
    rate = {"message": "You exceeded your current quota, retry in 12 s", "code": 429}
    await failure(ModelUnavailable, {"error": rate}, 429)


@pytest.mark.parametrize(
    "words",
    [
        "Input length 301574 exceeds the maximum allowed input length of 262112 tokens.",
        "Input length 9000 exceeds maximum allowed length 8192",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000",
        "number of input tokens (204703) has exceeded max_prompt_tokens (202752) limit.",
        "The input token count (1066750) exceeds the maximum number of tokens allowed (1048575).",
        "Please reduce the length of the input prompt",
    ],
)
async def test_the_usual_wordings_of_a_context_overflow_are_recognised(words: str) -> None:
    await failure(ContextLengthExceeded, {"error": {"message": words}}, 400)


# --- time ---


@BOTH
async def test_an_answer_that_takes_too_long_names_the_setting_that_bounds_it(stream: bool) -> None:
    async def trickling(writer: asyncio.StreamWriter) -> None:
        writer.write(head(content_type="text/event-stream" if stream else "application/json"))
        while not writer.is_closing():
            writer.write(b": wait\n\n" if stream else b"\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    short = {"timeout_s": 0.3}
    async with serving(trickling) as endpoint:
        with pytest.raises(ModelUnavailable, match=r"finish its answer within 0\.3 s; raise the model's timeout_s$"):
            await ask_at(endpoint.base_url, stream=stream, connection=Connection(**short))
    async with serving(silent) as endpoint:
        with pytest.raises(ModelUnavailable, match=r"within 0\.3 s; raise the model's timeout_s$") as raised:
            await ask_at(endpoint.base_url, stream=stream, connection=Connection(**short))
    # It was sent, and may have been read.
    assert raised.value.usage is not None
    assert raised.value.usage.input_tokens == raised.value.usage.estimated_tokens > 0


async def test_the_silence_within_a_stream_is_bounded_apart_and_that_of_a_whole_answer_is_not() -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        await answering(completion({"content": "hi"}))(writer)

    connection = Connection(idle_timeout_s=0.2, timeout_s=20)
    async with serving(slow) as endpoint:
        with pytest.raises(ModelUnavailable, match=r"send anything within 0\.2 s; raise the model's idle_timeout_s$"):
            await ask_at(endpoint.base_url, stream=True, connection=connection)
    async with serving(slow) as endpoint:
        assert (await ask_at(endpoint.base_url, stream=False, connection=connection)).message.content == "hi"
