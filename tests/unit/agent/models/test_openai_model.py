"""The real client against the scripted server, over real HTTP, with what goes wrong there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.models.chat_request import request_body
from agent.models.model import OnDelta, no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.prices import Prices
from agent.models.scripted_model_server import Call, Fault, ScriptedModelServer, Turn
from agent.models.settings import Connection
from agent.models.token_estimates import request_tokens
from agent.state import ModelResponse
from tests.unit.agent.fakes import Events, FakeFiles, allowing, state
from tests.unit.agent.models.asking import Deltas

REQUEST = InferenceRequest("be brief", (Message(role="user", content="hello"),), ())
BOTH = pytest.mark.parametrize("stream", [True, False])


async def ask(
    turn: Turn,
    *,
    stream: bool = True,
    deltas: OnDelta = no_deltas,
    requests: list[Any] | None = None,
    **options: Any,
) -> ModelResponse:
    async with ScriptedModelServer([turn]) as server:
        known = {"base_url": server.base_url, "api_key": "sk-secret", "connection": Connection(idle_timeout_s=5)}
        model = OpenAIModel("m", stream=stream, **{**known, **options})  # type: ignore[arg-type]
        try:
            return await model.infer(REQUEST, deltas)
        finally:
            await model.close()
            if requests is not None:
                requests.extend(server.requests)


def streamed(*deltas: Any, usage: Any = None, finish_reason: str = "stop", done: bool = True) -> Turn:
    """An endpoint's stream as it is written here, however odd."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}], "usage": usage})
    return events(*(f"data: {json.dumps(chunk)}" for chunk in chunks), *(["data: [DONE]"] if done else []))


def events(*said: str) -> Turn:
    """The same, with each event as it is."""
    body = "".join(f"{event}\n\n" for event in said)
    return Turn(fault=Fault("status", status=200, headers={"Content-Type": "text/event-stream"}, body=body))


def whole(message: Any, usage: Any = None) -> Turn:
    """The same without streaming."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return Turn(fault=Fault("status", status=200, body={"choices": [choice], "usage": usage}))


def fragment(arguments: Any = None, name: str | None = None, id_: str | None = None, **index: int) -> Any:
    """A piece of a tool call as a stream has it."""
    return {**index, "id": id_, "function": {"name": name, "arguments": arguments}}


def called(response: ModelResponse) -> list[tuple[str, Any]]:
    ids = [call.id for call in response.message.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    return [(call.name, call.arguments) for call in response.message.tool_calls]


@BOTH
async def test_text_arrives_whole_with_usage(stream: bool) -> None:
    deltas = Deltas()
    response = await ask(Turn(say="a long enough answer é"), stream=stream, deltas=deltas)
    assert response.message.content == "".join(deltas.text) == "a long enough answer é"
    assert response.finish_reason == "stop"
    assert response.usage.output_tokens > 0
    assert (len(deltas.text) > 1) is stream


@BOTH
async def test_parallel_calls_are_put_together_from_fragments_and_missing_ids_are_made(stream: bool) -> None:
    calls = [Call("a", {"path": "x" * 40}), Call("b", {"n": [1, 2, {"k": "é"}]}, id=""), Call("c", "")]
    response = await ask(Turn(calls=calls), stream=stream)
    got = response.message.tool_calls
    assert [(call.name, call.arguments) for call in got] == [
        ("a", {"path": "x" * 40}),
        ("b", {"n": [1, 2, {"k": "é"}]}),
        ("c", {}),
    ]
    assert all(call.id for call in got)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                [fragment("", "a", "1", index=0), fragment("", "b", "2", index=1)],
                [fragment('{"x"', index=0), fragment('{"y"', index=1)],
                [fragment(": 2}", index=1), fragment(": 1}", index=0)],
            ],
            id="interleaved",
        ),
        pytest.param([[fragment('{"y": 2}', "b", "2", index=1)], [fragment('{"x": 1}', "a", "1", index=0)]], id="late"),
        pytest.param([[fragment('{"x": 1}', "a", "1"), fragment('{"y": 2}', "b", "2")]], id="whole, no index"),
        pytest.param([[fragment({"x": 1}, "a"), fragment({"y": 2}, "b")]], id="objects, neither index nor id"),
        pytest.param(
            [
                [fragment("", "a", "1")],
                [fragment('{"x":')],
                [fragment(" 1}")],
                [fragment("", "b", "2")],
                [fragment('{"y": 2}')],
            ],
            id="pieces, no index",
        ),
        pytest.param(
            [
                [fragment("", "a", "1"), fragment("", "b", "2")],
                [fragment('{"y": 2}', id_="2")],
                [fragment('{"x": 1}', id_="1")],
            ],
            id="pieces by id, no index",
        ),
        pytest.param(
            [[fragment('{"x": 1}', "a", "1", index=0)], [fragment('{"y": 2}', "b", "2", index=0)]], id="each index 0"
        ),
        pytest.param(
            [
                [fragment('{"x"', "a", "1", index=0)],
                [fragment(": 1}", "a", "1", index=0)],
                [fragment('{"y": 2}', "b", "2", index=1)],
            ],
            id="name and id repeated",
        ),
        pytest.param(
            [
                [fragment('{"x"', "a", "1", index=0)],
                [fragment(": 1}", id_="9", index=0)],
                [fragment('{"y": 2}', "b", "1", index=1)],
            ],
            id="other id on each piece, one id for two calls",
        ),
    ],
)
async def test_parallel_calls_are_distinguished_however_an_endpoint_streams_them(pieces: list[Any]) -> None:
    response = await ask(streamed(*({"tool_calls": piece} for piece in pieces)))
    assert called(response) == [("a", {"x": 1}), ("b", {"y": 2})]


@pytest.mark.parametrize("index", [{}, {"index": 0}])
@pytest.mark.parametrize("id_", [None, "same"])
async def test_the_same_call_made_twice_at_once_is_two_calls(index: dict[str, int], id_: str | None) -> None:
    twice = [fragment('{"x": 1}', "a", id_, **index), fragment('{"x": 1}', "a", id_, **index)]
    assert called(await ask(streamed({"tool_calls": twice}))) == [("a", {"x": 1})] * 2
    calls = [{"type": "function", **fragment("", "a", id_)}] * 2
    assert called(await ask(whole({"tool_calls": calls}), stream=False)) == [("a", {})] * 2


@pytest.mark.parametrize(
    "ids, index",
    [
        pytest.param((None, None), {}, id="neither id nor index"),
        pytest.param(("1", "2"), {"index": 0}, id="each index 0"),
        pytest.param(("1", "2"), {}, id="no index"),
    ],
)
async def test_two_calls_of_one_tool_in_pieces_are_two_calls(ids: Any, index: dict[str, int]) -> None:
    pieces = [
        piece
        for id_ in ids
        for piece in (fragment("", "a", id_, **index), fragment('{"x":', **index), fragment(" 1}", **index))
    ]
    response = await ask(streamed(*({"tool_calls": [piece]} for piece in pieces)))
    assert called(response) == [("a", {"x": 1})] * 2


async def test_of_several_ids_for_one_call_the_first_counts() -> None:
    pieces = [fragment("{", "a", "1"), fragment("}", id_="2")]
    (call,) = (await ask(streamed(*({"tool_calls": [piece]} for piece in pieces)))).message.tool_calls
    assert (call.id, call.arguments) == ("1", {})


async def test_a_stream_without_end_is_ended() -> None:
    with pytest.raises(ModelNonsense, match="without end"):
        await ask(streamed({"tool_calls": [fragment("{}", "a", str(number), index=number) for number in range(129)]}))
    with pytest.raises(ModelNonsense, match="without end"):
        await ask(streamed({"reasoning_content": "x" * 5_000_000}))


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "{'a': 1}"])
async def test_arguments_that_are_no_json_object_are_kept_raw(raw: str) -> None:
    (call,) = (await ask(Turn(calls=[Call("a", raw)]))).message.tool_calls
    assert (call.arguments, call.raw_arguments) == (None, raw)


@pytest.mark.parametrize(
    "fault, stream, error",
    [
        (Fault("drop"), True, ModelUnavailable),
        (Fault("drop"), False, ModelUnavailable),
        (Fault("nonsense"), True, ModelNonsense),
        (Fault("nonsense"), False, ModelNonsense),
        (Fault("empty"), True, ModelNonsense),
        (Fault("empty"), False, ModelNonsense),
        (Fault("status", status=500), True, ModelUnavailable),
        (Fault("status", status=429), True, ModelUnavailable),
        (Fault("status", status=401), True, ModelRefused),
        (Fault("status", status=404), True, ModelRefused),
    ],
)
async def test_each_fault_is_one_clear_error_that_names_the_endpoint_and_not_the_key(
    fault: Fault, stream: bool, error: type[ModelError]
) -> None:
    with pytest.raises(error, match=re.escape("http://127.0.0.1:")) as raised:
        await ask(Turn(say="x", fault=fault), stream=stream)
    assert type(raised.value) is error
    assert "sk-secret" not in str(raised.value)


NOW_S = 1_000_000_000.0  # Sun, 09 Sep 2001 01:46:40 GMT


@pytest.mark.parametrize(
    "headers, retry_after_s",
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "7", "Retry-After-Ms": "250"}, 0.25),
        ({"Retry-After": "Sun, 09 Sep 2001 01:47:10 GMT"}, 30.0),
        ({"Retry-After": "Sun, 09 Sep 2001 01:00:00 GMT"}, 0.0),
        ({"Retry-After": "Sun, 09 Sep 2001 02:47:10"}, 300.0),
        ({"Retry-After": "86400"}, 300.0),
        ({"Retry-After": "inf"}, 300.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Sun, 99 Sep 99999 99:00:00 GMT"}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_an_endpoint_may_say_when_to_ask_again_within_bounds(
    status: int, headers: dict[str, str], retry_after_s: float | None
) -> None:
    with pytest.raises(ModelUnavailable) as raised:
        await ask(Turn(fault=Fault("status", status=status, headers=headers)), now=lambda: NOW_S)
    assert raised.value.retry_after_s == retry_after_s
    assert ("again later" if retry_after_s is None else f"again in {retry_after_s:g} s") in str(raised.value)


def refusal(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


@pytest.mark.parametrize(
    "status, body",
    [
        (400, refusal("no", code="context_length_exceeded")),
        (400, refusal("This model's maximum context length is 8192 tokens, you requested 9000")),
        (400, refusal("prompt is too long: 210000 tokens > 200000 maximum")),
        (400, refusal("the request exceeds the available context size, try increasing it")),
        (400, refusal("Input exceeds the context window of this model")),
        (400, refusal("Too many tokens: 9000 > 8192")),
        (422, refusal("too many input tokens")),
        (413, "request entity too large"),
    ],
)
@BOTH
async def test_messages_that_do_not_fit_are_distinguished_from_other_refusals(
    status: int, body: Any, stream: bool
) -> None:
    with pytest.raises(ContextLengthExceeded, match="context window"):
        await ask(Turn(fault=Fault("status", status=status, body=body)), stream=stream)


async def test_messages_that_do_not_fit_may_be_found_out_in_the_middle_of_a_stream() -> None:
    body = f"data: {json.dumps(refusal('the prompt is too long'))}\n\n"
    fault = Fault("status", status=200, headers={"Content-Type": "text/event-stream"}, body=body)
    with pytest.raises(ContextLengthExceeded):
        await ask(Turn(fault=fault))


@pytest.mark.parametrize(
    "status, message, error",
    [
        (400, "temperature must be at most 2", ModelRefused),
        (429, "too many tokens per minute", ModelUnavailable),
        (500, "context window", ModelUnavailable),
        (403, "this key may not use a context window of that size", ModelRefused),
    ],
)
async def test_other_refusals_are_not_taken_for_messages_that_do_not_fit(
    status: int, message: str, error: type[ModelError]
) -> None:
    with pytest.raises(error) as raised:
        await ask(Turn(fault=Fault("status", status=status, body=refusal(message))))
    assert type(raised.value) is error


async def test_what_an_endpoint_says_is_bounded_and_shown_without_the_key_it_echoes() -> None:
    with pytest.raises(ModelRefused, match=r"the key \[the API key\] is wrong") as raised:
        await ask(Turn(fault=Fault("status", status=401, body=refusal("the key sk-secret is wrong" + "x" * 100_000))))
    assert len(str(raised.value)) < 3000


REPORTED = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}


@BOTH
async def test_with_prices_the_usage_has_a_cost(stream: bool) -> None:
    turn = streamed({"content": "hi"}, usage=REPORTED) if stream else whole({"content": "hi"}, REPORTED)
    response = await ask(turn, stream=stream, prices=Prices(input_usd_per_mtok=3, output_usd_per_mtok=15))
    assert response.usage == Usage(input_tokens=1000, output_tokens=500, cost_usd=0.0105)
    assert (await ask(turn, stream=stream)).usage.cost_usd == 0


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_would_give_a_budget_back_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Prices(input_usd_per_mtok=0, output_usd_per_mtok=price)


NONE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
BELOW = {"prompt_tokens": -5000, "completion_tokens": -5000, "total_tokens": -10000}
WORDS = {"prompt_tokens": "many", "completion_tokens": None, "total_tokens": float("inf")}


@pytest.mark.parametrize("usage", [None, NONE, BELOW, WORDS, "none"])
@BOTH
async def test_an_endpoint_that_reports_no_usage_is_estimated(stream: bool, usage: Any) -> None:
    said = {"content": "x" * 300, "tool_calls": [{"type": "function", **fragment('{"x": 1}', "tool", "1")}]}
    turn = streamed(said, usage=usage) if stream else whole(said, usage)
    prices = Prices(input_usd_per_mtok=1, output_usd_per_mtok=1)
    got = (await ask(turn, stream=stream, prices=prices)).usage
    assert got.output_tokens == (300 + len('{"x": 1}') + len("tool")) / 4
    assert got.input_tokens == request_tokens(REQUEST) > 0
    assert got.cost_usd == pytest.approx((got.input_tokens + got.output_tokens) / 1e6)


@pytest.mark.parametrize(
    "turn, output_tokens",
    [
        (streamed({"content": "x" * 400}, finish_reason="", done=False), 100),
        (streamed({"content": "x" * 400}, finish_reason="", usage=REPORTED, done=False), 500),
        (streamed({"reasoning_content": "x" * 5_000_000}), 1_250_000),
        (streamed({"tool_calls": [fragment("x" * 5_000_000, "a", "1", index=0)]}), 1_250_001),
    ],
)
async def test_an_answer_that_began_and_was_of_no_use_is_paid_for(turn: Turn, output_tokens: int) -> None:
    with pytest.raises(ModelError) as raised:
        await ask(turn, prices=Prices(input_usd_per_mtok=0, output_usd_per_mtok=1))
    assert raised.value.usage is not None
    assert raised.value.usage.input_tokens > 0
    assert raised.value.usage.output_tokens == output_tokens
    assert raised.value.usage.cost_usd == pytest.approx(output_tokens / 1e6)


@pytest.mark.parametrize("fault", [Fault("status", status=429), Fault("status", status=500), Fault("empty")])
@BOTH
async def test_where_nothing_of_an_answer_came_nothing_is_paid(fault: Fault, stream: bool) -> None:
    with pytest.raises(ModelError) as raised:
        await ask(Turn(fault=fault), stream=stream)
    assert raised.value.usage is None


async def test_half_a_surrogate_pair_in_what_an_endpoint_says_is_replaced() -> None:
    with pytest.raises(ModelRefused, match="bad \ufffd thing") as raised:
        await ask(Turn(fault=Fault("status", status=400, body=refusal("bad \ud800 thing"))))
    str(raised.value).encode()


async def test_a_name_that_no_tool_can_have_is_sent_again_as_one_that_endpoints_take() -> None:
    calls = tuple(ToolCall(id=str(n), name=name, arguments={}) for n, name in enumerate(["a b/\u00e9", "x" * 100, ""]))
    results = tuple(Message(role="tool", tool_call_id=call.id, content="no") for call in calls)
    thread = (*REQUEST.messages, Message(role="assistant", tool_calls=calls), *results)
    messages = request_body("m", InferenceRequest("", thread, ()))["messages"]
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["a_b__", "x" * 64, "_"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == [said["tool_call_id"] for said in messages[2:]]


async def test_a_number_that_is_reported_is_kept_beside_one_that_is_estimated() -> None:
    got = (await ask(streamed({"content": "x" * 40}, usage={**NONE, "prompt_tokens": 77}))).usage
    assert (got.input_tokens, got.output_tokens) == (77, 10)


async def test_a_closed_port_is_unavailable_and_says_what_to_check() -> None:
    model = OpenAIModel("m", base_url="http://user:sk-secret@127.0.0.1:1/v1", api_key="k")
    with pytest.raises(ModelUnavailable, match="check base_url") as raised:
        await model.infer(REQUEST, no_deltas)
    assert "sk-secret" not in str(raised.value)


async def test_a_proxy_of_the_environment_is_not_used_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert (await ask(Turn(say="hi"))).message.content == "hi"


async def run_script(turns: list[Turn], files: FakeFiles) -> tuple[ScriptedModelServer, Events]:
    events = Events()

    async def no_sleep(_: float) -> None: ...

    async with ScriptedModelServer(turns) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="k", connection=Connection(idle_timeout_s=5))
        agent = Agent(
            model=model,
            capabilities=(flow(sleep=no_sleep), filesystem(files)),
            hooks=(allowing(),),
            system_prompt="you are tested",
        )
        await agent.run(state(), events)
        await model.close()
    return server, events


async def test_a_whole_run_over_http_through_faults_with_expectations_met() -> None:
    turns = [
        Turn(expect=["do it"], say="I look.", calls=[Call("ls", {}), Call("read_file", {"path": "a.txt"})]),
        Turn(
            expect=[re.compile(r'"name": "a\.txt"'), ["hello", lambda text: "bye" not in text]],
            calls=lambda received: [
                Call("edit_file", {"path": "a.txt", "old_text": received[1].strip(), "new_text": "bye"})
            ],
            fault=Fault("drop", times=2),
        ),
        Turn(expect=["replaced 1 match"], calls=[Call("write_file", "{not json")]),
        Turn(expect=["not a JSON object: {not json"], say="done", fault=Fault("status", times=1)),
    ]
    files = FakeFiles({"/workspace/a.txt": b"hello"})
    server, events = await run_script(turns, files)
    assert server.failures == []
    assert events[-1].payload["status"] == "completed"
    assert events[-1].payload["answer"] == "done"
    assert files.files == {"/workspace/a.txt": b"bye"}
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "you are tested"}
    assert "".join(str(payload["text"]) for payload in events.of("model_delta")).startswith("I look.")


@pytest.mark.parametrize(
    "expectation", ["good bye", re.compile("good ?bye"), lambda text: "good bye is missing", lambda text: text == "x"]
)
async def test_an_expectation_that_is_not_met_fails_the_run_loudly(expectation: object) -> None:
    turns = [Turn(calls=[Call("read_file", {"path": "a.txt"})]), Turn(expect=[expectation], say="fine")]  # type: ignore[list-item]
    server, events = await run_script(turns, FakeFiles({"/workspace/a.txt": b"hello"}))
    assert len(server.failures) == 1
    end = events[-1].payload
    assert end["status"] == "failed"
    assert "the script's turn 1: message 0" in str(end["stop"])
    assert "hello" in str(end["stop"])


async def test_a_script_that_is_at_its_end_says_so() -> None:
    server, events = await run_script([Turn(calls=[Call("ls", {})])], FakeFiles())
    assert "the script has 1 turns only" in server.failures[0]
    assert events[-1].payload["status"] == "failed"
