"""The wire format of the Responses API: what is sent, and answers put together from what endpoints send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.errors import ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall, ToolSpec
from agent.models.endpoint_errors import UnusableAnswer, complaint_in, endpoint_error
from agent.models.reported_usage import usage_of
from agent.models.responses import Gathered, request_body
from agent.models.settings import RequestSettings

HERE = "https://api.example m"
TOOL = ToolSpec("ls", "Lists.", {"type": "object", "properties": {"path": {"type": "string"}}})

RS = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]}
RS |= {"encrypted_content": "gAAAAB", "status": None}
MSG = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": "commentary"}
MSG |= {"content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]}
FC = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "ls", "arguments": '{"path": "a"}'}
FC2 = {**FC, "id": "fc_2", "call_id": "call_2", "arguments": '{"path": "b"}'}
USAGE = {"input_tokens": 75, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 40}
USAGE |= {"output_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 115}


def ended(output: list[Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    response = {"object": "response", "status": status, "output": output, "usage": USAGE, **fields}
    return {"type": f"response.{status}", "response": response}


def delta(kind: str, text: str, **place: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "delta": text, **place}


def item(when: str, of: dict[str, Any], index: int | None = None) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index}
    return {"type": f"response.output_item.{when}", "item": of, **place}


# As OpenAI streams it, with encrypted reasoning, a commentary and two calls whose deltas are interleaved.
OPENAI = [
    {"type": "response.created", "response": {"status": "in_progress", "output": [], "error": None, "usage": None}},
    {"type": "response.in_progress", "response": {"status": "in_progress", "output": []}},
    item("added", {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA"}, 0),
    {"type": "response.reasoning_summary_part.added", "item_id": "rs_1", "output_index": 0, "summary_index": 0},
    delta("reasoning_summary_text", "Lo", item_id="rs_1", output_index=0, summary_index=0, obfuscation="x"),
    delta("reasoning_summary_text", "ok.", item_id="rs_1", output_index=0, summary_index=0, obfuscation="xy"),
    item("done", RS, 0),
    item("added", {**MSG, "content": [], "status": "in_progress"}, 1),
    delta("output_text", "I look", item_id="msg_1", output_index=1, content_index=0),
    delta("output_text", ".", item_id="msg_1", output_index=1, content_index=0),
    {"type": "response.output_text.done", "item_id": "msg_1", "output_index": 1, "text": "I look."},
    item("done", MSG, 1),
    item("added", {**FC, "arguments": ""}, 2),
    item("added", {**FC2, "arguments": ""}, 3),
    delta("function_call_arguments", '{"path"', item_id="fc_1", output_index=2),
    delta("function_call_arguments", '{"path": ', item_id="fc_2", output_index=3),
    delta("function_call_arguments", ': "a"}', item_id="fc_1", output_index=2),
    delta("function_call_arguments", '"b"}', item_id="fc_2", output_index=3),
    item("done", FC, 2),
    item("done", FC2, 3),
    ended([{**RS, "encrypted_content": None}, MSG, FC, FC2]),
]


def without(kinds: tuple[str, ...], fields: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the stream without events and fields that some endpoint leaves out."""
    events = [event for event in OPENAI if not any(kind in event["type"] for kind in kinds)]
    return [{name: value for name, value in event.items() if name not in fields} for event in events]


def renamed() -> list[dict[str, Any]]:
    """Return the stream with another id for an item in each event, as a proxy sends it."""
    return [
        json.loads(json.dumps(event).replace("_1", f"_1{number}").replace("_2", f"_2{number}"))
        for number, event in enumerate(OPENAI)
    ]


def gathered(events: list[Any]) -> tuple[Gathered, str, str]:
    """Return the answer, and its text and reasoning as they arrived."""
    answer, texts, thoughts = Gathered(), "", ""
    for event in events:
        arrived = answer.add(event)
        texts, thoughts = texts + arrived.text, thoughts + arrived.reasoning
    return answer, texts, thoughts


# --- answers ---


@pytest.mark.parametrize(
    "events",
    [
        OPENAI,
        without((".added", "part", "text.done")),
        without((), ("output_index",)),
        without((), ("item_id",)),
        without((), ("item_id", "output_index")),
        without(("item.done",)),
        without((".delta",)),
        without((".added", ".delta", ".done")),
        renamed(),
        [OPENAI[-1]["response"]],
    ],
    ids=[
        "openai",
        "no-begin",
        "no-index",
        "no-ids",
        "neither",
        "no-ends",
        "no-deltas",
        "only-an-end",
        "other-ids",
        "whole",
    ],
)
def test_an_answer_is_the_same_whatever_an_endpoint_leaves_out(events: list[Any]) -> None:
    answer, text, reasoning = gathered(events)
    message = answer.message()
    assert (text, reasoning, message.content) == ("I look.", "Look.", "I look.")
    assert [(call.name, call.arguments["path"]) for call in message.tool_calls] == [("ls", "a"), ("ls", "b")]
    assert (answer.finish_reason, answer.begun, answer.ended, answer.empty) == ("tool_calls", True, True, False)
    assert (answer.reasoning_chars, answer.refused) == (5, False)
    usage = usage_of(answer.usage, InferenceRequest("", (), ()), answer.written_chars)
    assert (usage.input_tokens, usage.output_tokens) == (75, 40)
    # By the names of chat completions, which usage_of reads.
    assert answer.usage["prompt_tokens_details"] == {"cached_tokens": 64}
    assert answer.usage["completion_tokens_details"] == {"reasoning_tokens": 30}


def test_a_stream_that_is_cut_off_before_its_end_is_recognised() -> None:
    answer, _, _ = gathered(OPENAI[:-1])
    assert (answer.finish_reason, answer.ended, answer.begun) == ("", False, True)


def test_llama_cpps_stream_without_indexes_and_item_ids_of_calls_is_understood() -> None:
    call = {"type": "function_call", "status": "completed", "call_id": "fc_abc", "name": "ls", "arguments": "{}"}
    begun = {**call, "id": "fc_abc", "call_id": "call_abc", "arguments": "", "status": "in_progress"}
    thought = {"id": "rs_x", "type": "reasoning", "summary": [], "encrypted_content": ""}
    thought["content"] = [{"text": "Hm.", "type": "reasoning_text"}]
    answer, _, reasoning = gathered(
        [
            {"type": "response.created", "response": {"id": "resp_x", "object": "response", "status": "in_progress"}},
            item("added", {**thought, "content": []}),
            delta("reasoning_text", "Hm.", item_id="rs_x"),
            item("added", begun),
            delta("function_call_arguments", "{", item_id="fc_abc"),
            delta("function_call_arguments", "}", item_id="fc_abc"),
            item("done", thought),
            item("done", call),
            ended([thought, call]),
        ]
    )
    message = answer.message(HERE)
    assert (reasoning, [call.arguments for call in message.tool_calls]) == ("Hm.", [{}])
    assert message.provider_data is not None
    assert message.provider_data.data["items"][0] == thought


def test_vllms_message_that_ends_empty_keeps_what_was_streamed() -> None:
    answer, text, _ = gathered(
        [
            item("added", {**MSG, "content": []}, 0),
            delta("output_text", "Hi", item_id="another", output_index=0, content_index=0),
            delta("output_text", "!", item_id="another", output_index=0, content_index=1),
            item("done", {**MSG, "content": []}, 0),
            ended([]),
        ]
    )
    assert text == answer.message().content == "Hi!"
    assert answer.finish_reason == "stop"


def test_parts_of_a_summary_are_apart() -> None:
    place = {"item_id": "rs_1", "output_index": 0}
    first = delta("reasoning_summary_text", "**A**", summary_index=0, **place)
    second = delta("reasoning_summary_text", "**B**", summary_index=1, **place)
    assert gathered([first, second])[2] == "**A**\n\n**B**"


@pytest.mark.parametrize(
    "details, reason",
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "steered"}, "steered"),
        (None, "length"),
        ("max", "length"),
        ({"reason": 7}, "length"),
    ],
)
def test_an_incomplete_answer_says_why(details: Any, reason: str) -> None:
    answer, _, _ = gathered([ended([MSG], "incomplete", incomplete_details=details)])
    assert (answer.finish_reason, answer.message().content) == (reason, "I look.")


def test_a_refusal_is_text_and_marked() -> None:
    refusal = {**MSG, "content": [{"type": "refusal", "refusal": "No."}]}
    streamed, text, _ = gathered([delta("refusal", "No.", item_id="msg_1"), item("done", refusal), ended([refusal])])
    whole, _, _ = gathered([ended([refusal])["response"]])
    assert (streamed.refused, whole.refused, text) == (True, True, "No.")
    assert streamed.message().content == whole.message().content == "No."


def test_a_failure_in_the_stream_is_an_error_by_its_code() -> None:
    flat = {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None}
    nested = {"type": "error", "error": {"type": "invalid_request_error", "code": "x", "message": "No."}}
    failed = ended([], "failed", error={"code": "server_error", "message": "Oh."})
    cases = ((flat, ModelUnavailable, "Slow"), (nested, ModelRefused, "No"), (failed, ModelUnavailable, "Oh"))
    for event, error, words in cases:
        complaint = complaint_in(event)
        assert complaint is not None
        assert words in complaint.words
        raised = endpoint_error(complaint, complaint.words, status=None, headers={}, now_s=0, model="m")
        assert type(raised) is error
    assert all(complaint_in(event) is None for event in OPENAI)
    assert gathered([failed])[0].finish_reason == "error"


JUNK = [None, 7, "x", [], {}, [None], [7, {"type": 7}], {"type": []}, float("nan"), True]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_no_field_of_a_wrong_type_breaks_the_assembly(junk: Any) -> None:
    """Each field of each event, and of the items in them, is replaced in turn."""

    def each(values: list[Any]) -> Iterator[list[Any]]:
        for at, value in enumerate(values):
            yield from ([*values[:at], other, *values[at + 1 :]] for other in spoilt(value))

    def spoilt(value: Any) -> list[Any]:
        if isinstance(value, dict):
            inner = [{**value, name: other} for name in value for other in spoilt(value[name])]
            return [*inner, *({**value, name: junk} for name in value)]
        if isinstance(value, list):
            return list(each(value))
        return [junk]

    for at, event in enumerate(OPENAI):
        for other in [junk, *spoilt(event)]:
            answer = Gathered()
            for one in [*OPENAI[:at], other, *OPENAI[at + 1 :]]:
                try:
                    answer.add(one)
                except UnusableAnswer:
                    assert not isinstance(one, dict)
            message = answer.message(HERE)
            assert Message.model_validate_json(message.model_dump_json()) == message
            json.dumps(request_body("m", InferenceRequest("", (message,), ()), provider=HERE), allow_nan=False)
            assert usage_of(answer.usage, InferenceRequest("", (), ()), answer.written_chars).output_tokens >= 0


def test_a_stream_without_end_is_endless() -> None:
    for event in (
        delta("reasoning_text", "x" * 100_000),
        item("done", {"type": "function_call", "name": "ls", "call_id": "", "arguments": "{}"}, 0),
    ):
        answer = Gathered()
        for number in range(600):
            answer.add({**event, "output_index": number})
            if answer.endless:
                break
        assert answer.endless


# --- what is sent ---


def test_the_thread_becomes_items_and_the_tools_are_flat_and_not_strict() -> None:
    call = ToolCall(id="call_9", name="l s", arguments={"path": "a"})
    thread = (
        Message(role="user", content="go"),
        Message(role="assistant", content="I look.", tool_calls=(call,)),
        Message(role="tool", tool_call_id="call_9", content="[]"),
        Message(role="assistant"),
    )
    body = request_body("m", InferenceRequest("be brief", thread, (TOOL,)))
    assert (body["model"], body["instructions"], body["store"]) == ("m", "be brief", False)
    assert "include" not in body
    user, said, called, result, empty = body["input"]
    assert user == {"role": "user", "content": "go"}
    assert (said["role"], said["content"][0]["text"]) == ("assistant", "I look.")
    assert (called["call_id"], called["name"], called["arguments"]) == ("call_9", "l_s", '{"path": "a"}')
    assert result == {"type": "function_call_output", "call_id": "call_9", "output": "[]"}
    assert empty["content"][0]["text"] == "(no text)"
    assert body["tools"] == [
        {"type": "function", "name": "ls", "description": "Lists.", "parameters": TOOL.parameters, "strict": False}
    ]


def test_settings_have_the_names_of_this_api() -> None:
    settings = RequestSettings(
        temperature=0,
        top_p=0.5,
        max_output_tokens=100,
        max_tokens_name="max_tokens",
        reasoning_effort="low",
        tool_choice="ls",
        parallel_tool_calls=False,
        response_format="json_schema",
        prompt_cache="prompt_cache_key",
        extra={"reasoning": {"summary": "auto"}, "store": True},
    )
    schema = {"type": "object"}
    request = InferenceRequest("", (Message(role="user", content="go"),), (TOOL,), schema, "t1")
    body = request_body("m", request, settings)
    key = body.pop("prompt_cache_key")
    assert "t1" not in key
    del body["input"], body["tools"]
    assert body == {
        "model": "m",
        "store": True,
        "temperature": 0,
        "top_p": 0.5,
        "max_output_tokens": 100,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}},
        "tool_choice": {"type": "function", "name": "ls"},
        "parallel_tool_calls": False,
    }


def test_an_answer_goes_back_as_it_came_to_its_endpoint_alone() -> None:
    message = gathered(OPENAI)[0].message(HERE)
    request = InferenceRequest("", (message,), ())
    back = request_body("m", request, provider=HERE)
    assert back["include"] == ["reasoning.encrypted_content"]
    assert back["input"][0] == RS
    assert [one["type"] for one in back["input"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [one["id"] for one in back["input"]] == ["rs_1", "msg_1", "fc_1", "fc_2"]
    assert back["input"][1]["phase"] == "commentary"
    assert [one["call_id"] for one in back["input"][2:]] == [call.id for call in message.tool_calls]
    for elsewhere in ("https://other.example m", None):
        items = request_body("m", request, provider=elsewhere)["input"]
        assert [one["type"] for one in items] == ["message", "function_call", "function_call"]
        assert "gAAAAB" not in json.dumps(items)


def test_an_answer_that_a_hook_changed_goes_back_without_what_no_longer_fits() -> None:
    message = gathered(OPENAI)[0].message(HERE)
    for changed in (message.with_(content="Something else."), message.with_(tool_calls=message.tool_calls[:1])):
        items = request_body("m", InferenceRequest("", (changed,), ()), provider=HERE)["input"]
        assert [one["type"] for one in items] == ["message", *["function_call"] * len(changed.tool_calls)]
        assert items[0]["content"][0]["text"] == changed.content


def test_texts_before_and_after_a_call_go_back_in_their_order() -> None:
    later = {**MSG, "id": "msg_2", "content": [{"type": "output_text", "text": "Done."}]}
    answer, _, _ = gathered([item("done", one, at) for at, one in enumerate([MSG, FC, later])])
    items = request_body("m", InferenceRequest("", (answer.message(HERE),), ()), provider=HERE)["input"]
    said = [one["content"][0]["text"] if "content" in one else one["name"] for one in items]
    assert said == ["I look.", "ls", "Done."]


def test_reasoning_that_is_too_long_is_dropped_and_nothing_else() -> None:
    long = {**RS, "encrypted_content": "x" * 300_000}
    message = gathered([item("done", long, 0), item("done", MSG, 1)])[0].message(HERE)
    assert (message.provider_data, message.content) == (None, "I look.")
