"""A message goes into its row and comes back whatever it holds, and one bad row does not cost the thread."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from agent.messages import Message, ToolCall
from gateway.storage.entities import NOT_READ, read_message, stored_text, whole_thread


def _asks(*ids: str) -> Message:
    return Message(role="assistant", tool_calls=tuple(ToolCall(id=id_, name="t", arguments={}) for id_ in ids))


def _answers(id_: str) -> Message:
    return Message(role="tool", tool_call_id=id_, content=f"result of {id_}")


def _nested(depth: int) -> dict[str, JsonValue]:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return {"deep": value}


def test_a_message_comes_back_as_it_was() -> None:
    for message in (_asks("a", "b"), _answers("a"), Message(role="user", content="\0 \N{ROCKET}")):
        assert read_message(stored_text(message)) == (message, True)


@pytest.mark.parametrize("arguments", [{}, {"half \ud800": "\udc00"}, _nested(400)], ids=["none", "half", "deep"])
def test_a_message_that_no_store_takes_is_stored_without_what_is_wrong(arguments: dict[str, JsonValue]) -> None:
    bad = ToolCall.model_construct(id="a", name="t", arguments=arguments, raw_arguments="", problem="")
    message = Message.model_construct(role="assistant", content="x\ud800", tool_calls=(bad,), tool_call_id=None)
    text = stored_text(message)
    text.encode()
    read, well = read_message(text)
    assert well
    assert read is not None
    assert (read.role, read.content, [call.id for call in read.tool_calls]) == ("assistant", "x\ufffd", ["a"])


def test_of_arguments_that_cannot_be_read_the_rest_of_the_message_is_there() -> None:
    row = json.loads(stored_text(_asks("a").model_copy(update={"content": "said"})))
    row["tool_calls"][0]["arguments"] = _nested(400)
    row["tool_calls"][0]["a field of another version"] = 1
    read, well = read_message(json.dumps(row))
    assert not well
    assert read is not None
    assert (read.content, [(call.id, call.arguments) for call in read.tool_calls]) == ("said", [("a", None)])


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", "[" * 100_000, '{"role": "x"}', '{"role":"user","con'])
def test_what_is_no_message_is_reported_as_lost(text: str) -> None:
    assert read_message(text) == (None, False)


def _shape(*found: Message | None) -> list[tuple[str, str | None]]:
    return [(message.role, message.tool_call_id) for message in whole_thread(found)]


def test_a_lost_answer_answers_the_call_that_waits_for_one() -> None:
    expected = [("assistant", None), ("tool", "a"), ("tool", "b"), ("tool", "c")]
    asks = _asks("a", "b", "c")
    for lost in (1, 2, 3):
        thread: list[Message | None] = [asks, _answers("a"), _answers("b"), _answers("c")]
        thread[lost] = None
        assert _shape(*thread) == expected


def test_the_answers_to_lost_calls_are_the_users() -> None:
    found = (Message(role="user", content="task"), None, _answers("a"), _answers("b"), _asks("c"), _answers("c"))
    assert [message.content for message in whole_thread(found)][:4] == ["task", NOT_READ, "result of a", "result of b"]
    assert _shape(*found) == [*[("user", None)] * 4, ("assistant", None), ("tool", "c")]
