"""Reasoning in chat completions: how endpoints send it, what of it they get back, and what is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.hooks.hook import InferenceRequest
from agent.messages import Message
from agent.models.chat_completions import Gathered
from agent.models.chat_request import request_body
from agent.models.provider_data import LIMIT_CHARS
from agent.state import AgentState, ModelResponse
from agent.tools.approval import PendingStep

HERE = "https://api.example m"
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
SIGNED = [{"type": "reasoning.text", "text": "Let me", "format": "anthropic-claude-v1", "index": 0}]
SIGNED += [{"type": "reasoning.text", "text": " look.", "format": "anthropic-claude-v1", "index": 0}]
SIGNED += [{"type": "reasoning.text", "text": "", "signature": "EqIBC", "format": "anthropic-claude-v1", "index": 0}]
SEALED = {"type": "reasoning.encrypted", "data": "gAAAA", "format": "openai-responses-v1", "index": 1, "id": "rs_1"}


def streamed(*deltas: Any, provider: str | None = HERE) -> tuple[Message, str, str]:
    """Return the message that the deltas make, and the text and the reasoning as they arrived."""
    answer, text, reasoning = Gathered(), "", ""
    for delta in deltas:
        arrived = answer.add({"choices": [{"index": 0, "delta": delta}]})
        text, reasoning = text + arrived.text, reasoning + arrived.reasoning
    assert answer.reasoning_chars == len(reasoning)
    return answer.message(provider), text, reasoning


def whole(message: Any) -> Message:
    answer = Gathered()
    answer.add({"choices": [{"index": 0, "message": message}]})
    return answer.message(HERE)


def sent_back(message: Message, provider: str | None = HERE) -> dict[str, Any]:
    thread = (message, Message(role="user", content="go on"))
    body = request_body("m", InferenceRequest("", thread, ()), provider=provider)
    sent: dict[str, Any] = json.loads(json.dumps(body, allow_nan=False))["messages"][0]
    return sent


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_plain_reasoning_goes_back_with_tool_calls_under_its_own_name(name: str) -> None:
    """As DeepSeek, Kimi, vLLM, llama.cpp and Ollama send it, by one name or the other."""
    thought = [{"role": "assistant", "content": None, name: "Let me"}, {name: " look."}]
    message, text, reasoning = streamed(*thought, {"content": "I look."}, {"tool_calls": [CALL]})
    assert (text, reasoning, message.content) == ("I look.", "Let me look.", "I look.")
    assert sent_back(message)[name] == "Let me look."
    assert name not in sent_back(message, "https://other.example m")
    without_calls, _, _ = streamed(*thought, {"content": "It is done."})
    assert without_calls.provider_data is None


def test_reasoning_is_counted_once_where_an_endpoint_sends_it_by_both_names() -> None:
    message, _, reasoning = streamed({"reasoning_content": "Hm.", "reasoning": "Hm."}, {"tool_calls": [CALL]})
    assert reasoning == "Hm."
    assert sent_back(message)["reasoning_content"] == "Hm."
    assert "reasoning" not in sent_back(message)


def test_openrouters_details_are_put_together_and_go_back_instead_of_their_text() -> None:
    deltas = [{"content": "", "reasoning": part["text"], "reasoning_details": [part]} for part in SIGNED]
    message, _, reasoning = streamed(*deltas, {"reasoning_details": [SEALED]}, {"content": "Done."})
    assert reasoning == "Let me look."
    sent = sent_back(message)
    text = {"type": "reasoning.text", "text": "Let me look.", "format": "anthropic-claude-v1", "index": 0}
    assert sent["reasoning_details"] == [text | {"signature": "EqIBC"}, SEALED]
    assert "reasoning" not in sent
    assert sent_back(message, None) == {"role": "assistant", "content": "Done."}


def test_blocks_of_a_whole_answer_go_back_as_they_came() -> None:
    """LiteLLM's thinking_blocks, with a redacted one and two that look alike."""
    blocks = [{"type": "thinking", "thinking": "a", "signature": "s1"}, {"type": "redacted_thinking", "data": "x"}]
    blocks += [{"type": "thinking", "thinking": "b"}, {"type": "thinking", "thinking": "c"}]
    message = whole({"content": None, "thinking_blocks": blocks, "reasoning_content": "abc", "tool_calls": [CALL]})
    assert sent_back(message)["thinking_blocks"] == blocks
    assert "reasoning_content" not in sent_back(message)


def test_a_block_ends_with_its_signature() -> None:
    pieces = [{"type": "thinking", "thinking": text} for text in "ab"]
    pieces += [{"type": "thinking", "thinking": "", "signature": "s1"}, {"type": "thinking", "thinking": "c"}]
    message, _, reasoning = streamed(*({"thinking_blocks": [piece]} for piece in pieces), {"content": "x"})
    assert reasoning == "abc"
    first, second = sent_back(message)["thinking_blocks"]
    assert (first["thinking"], first["signature"], second["thinking"]) == ("ab", "s1", "c")


def test_geminis_signature_goes_back_with_its_call() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "AY89"}}}
    other = {**CALL, "index": 1, "id": "call_2"}
    message, _, _ = streamed({"tool_calls": [CALL | signed]}, {"tool_calls": [other]}, {"content": "x", **signed})
    sent = sent_back(message)
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [signed["extra_content"], None]
    assert sent["extra_content"] == signed["extra_content"]
    changed = sent_back(message.with_(tool_calls=message.tool_calls[1:]))
    assert "extra_content" not in changed["tool_calls"][0]


def test_mistrals_thinking_parts_are_reasoning_and_no_text() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    message, text, reasoning = streamed({"content": [thought]}, {"content": [{"type": "text", "text": "Yes."}]})
    assert (text, reasoning, message.content) == ("Yes.", "Hm.", "Yes.")


def test_nothing_is_kept_where_nothing_is_sent_back() -> None:
    message, _, reasoning = streamed({"reasoning_content": "Hm."}, {"tool_calls": [CALL]}, provider=None)
    assert (message.provider_data, reasoning) == (None, "Hm.")


@pytest.mark.parametrize(
    "detail",
    [
        {"type": "reasoning.encrypted", "data": "x" * LIMIT_CHARS},
        {"type": "reasoning.encrypted", "data": "\ud800"},
        {"type": "reasoning.encrypted", "data": float("nan")},
        {"type": "reasoning.encrypted", "data": json.loads("[" * 200 + "]" * 200)},
        {"type": "reasoning.text", "text": "x" * LIMIT_CHARS},
    ],
    ids=["long", "surrogate", "nan", "deep", "long text"],
)
def test_what_cannot_be_kept_is_dropped_and_nothing_else(detail: Any) -> None:
    message, _, _ = streamed({"reasoning_details": [detail]}, {"content": "Done.", "tool_calls": [CALL]})
    assert (message.provider_data, message.content, len(message.tool_calls)) == (None, "Done.", 1)


@pytest.mark.parametrize("junk", [7, "x", [7], {}, {"a": 1}, [{"type": 7, "text": 7, "index": []}], True, [[]]])
def test_fields_of_a_wrong_type_break_nothing(junk: Any) -> None:
    names = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "extra_content")
    deltas = [{name: junk} for name in names]
    call = {**CALL, "extra_content": junk, "provider_specific_fields": junk}
    message, _, _ = streamed(*deltas, *deltas, {"content": "Done."}, {"tool_calls": [call]})
    assert (message.content, message.tool_calls[0].name) == ("Done.", "ls")
    assert Message.model_validate_json(message.model_dump_json()) == message
    sent_back(message)


def test_half_a_surrogate_pair_in_plain_reasoning_is_replaced() -> None:
    message, _, _ = streamed({"reasoning_content": "a\ud800"}, {"tool_calls": [CALL]})
    assert sent_back(message)["reasoning_content"] == "a\ufffd"


def test_what_is_kept_survives_the_store_and_a_step_that_waits() -> None:
    message, _, _ = streamed({"reasoning_details": [SEALED]}, {"tool_calls": [CALL]})
    assert Message.model_validate_json(message.model_dump_json()) == message
    state = AgentState.start("go")
    pending = PendingStep.of(state, ModelResponse(message=message, finish_reason="tool_calls"))
    stored = state.with_(pending=pending.model_dump(mode="json")).model_dump_json()
    resumed = PendingStep.model_validate(AgentState.model_validate_json(stored).pending)
    assert resumed.response().message.provider_data == message.provider_data
    assert sent_back(resumed.response().message) == sent_back(message)
