"""Answers that are made to hold the gateway's event loop or its memory, or to cost nothing."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from agent.models import chat_completions, responses
from agent.models.chat_completions import is_call
from agent.models.endpoint_errors import complaint_in
from agent.models.metered_model import charged
from agent.models.openai_model import OpenAIModel
from agent.models.provider_data import LIMIT_CHARS
from agent.models.settings import Api, RequestSettings
from tests.unit.agent.models.asking import REQUEST, chunk
from tests.unit.agent.models.raw_endpoint import SSE, head, serving

PIECES, JUNK = 8, 33_000
CALLS = [{"id": str(number), "function": {"name": "ls"}} for number in range(50_000)]


def _junk() -> list[Any]:
    """Return values that take twenty times as much memory as their brackets take on the wire."""
    return [[] for _ in range(JUNK)]


def _chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": "a", **delta}}]}


def _block(number: int) -> dict[str, Any]:
    return _chat(reasoning_details=[{"index": number, "junk": _junk()}])


def _block_of_many_keys(number: int) -> dict[str, Any]:
    return _chat(reasoning_details=[{f"junk{number}": _junk()}])


def _call(number: int) -> dict[str, Any]:
    return _chat(tool_calls=[{"index": number, **CALLS[number], "extra_content": {"junk": _junk()}}])


def _item(number: int, kind: str = "reasoning") -> dict[str, Any]:
    item = {"type": kind, "id": f"i{number}", "content": [{"type": "output_text", "text": "a", "junk": _junk()}]}
    return {"type": "response.output_item.done", "output_index": number, "item": item}


def _said(number: int) -> dict[str, Any]:
    return _item(number, "message")


@pytest.mark.parametrize(
    "gathered, piece",
    [
        (chat_completions.Gathered, _block),
        (chat_completions.Gathered, _block_of_many_keys),
        (chat_completions.Gathered, _call),
        (responses.Gathered, _item),
        (responses.Gathered, _said),
    ],
)
def test_what_is_too_long_to_be_kept_is_not_held_meanwhile(
    gathered: Callable[[], Any], piece: Callable[[int], dict[str, Any]]
) -> None:
    answer = gathered()
    answer.add(piece(0))
    tracemalloc.start()
    try:
        for number in range(1, PIECES):
            answer.add(piece(number))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < PIECES * 3 * JUNK
    assert not answer.endless
    assert answer.message("https://api.example m").provider_data is None


def test_a_part_of_what_belongs_to_the_calls_is_not_sent_back_without_the_rest() -> None:
    answer = chat_completions.Gathered()
    for number in range(4):
        extra = {"google": {"thought_signature": "x" * (LIMIT_CHARS // 3)}}
        call = {"index": number, "id": f"c{number}", "function": {"name": "ls", "arguments": "{}"}}
        answer.add({"choices": [{"delta": {"tool_calls": [call | {"extra_content": extra}]}}]})
    message = answer.message("https://api.example m")
    assert (len(message.tool_calls), message.provider_data) == (4, None)


@pytest.mark.parametrize(
    "gathered, answer",
    [
        (chat_completions.Gathered, {"choices": [{"delta": {"tool_calls": CALLS}}]}),
        (responses.Gathered, {"status": "completed", "output": [{"type": "reasoning"}] * 50_000}),
    ],
)
def test_no_more_calls_or_items_of_one_event_are_looked_at_than_an_answer_may_have(
    gathered: Callable[[], Any], answer: dict[str, Any]
) -> None:
    """Each is looked for among all before it: the event loop would stand for a minute."""
    taken = gathered()
    taken.add(answer)
    assert taken.endless
    assert len(taken.message().tool_calls) < 200


def test_millions_of_empty_lines_are_looked_at_once() -> None:
    """With a look at all that follows each line, this would take days."""
    assert not is_call("\n" * 2_000_000)
    assert not is_call(" \n" * 1_000_000)
    assert is_call("\n" * 1_000_000 + " \t<tool_call>")


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
async def test_a_cancelled_answer_costs_what_has_arrived_of_its_calls(api: Api) -> None:
    """Their pieces are not shown, so they are not counted by what is shown."""
    arguments, arrived = "x" * 4000, asyncio.Event()
    call = {"index": 0, "id": "c1", "function": {"name": "ls", "arguments": arguments}}
    said = {
        "chat_completions": [chunk({"tool_calls": [call]}), chunk({"content": "."})],
        "responses": [
            json.dumps({"type": "response.function_call_arguments.delta", "delta": arguments}),
            json.dumps({"type": "response.output_text.delta", "delta": "."}),
        ],
    }

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_type=SSE["content-type"]))
        writer.write("".join(f"data: {event}\n\n" for event in said[api]).encode())
        await writer.drain()
        await asyncio.Event().wait()

    def on_delta(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        arrived.set()

    async with (
        serving(answer) as endpoint,
        OpenAIModel("m", base_url=endpoint.base_url, api_key="", settings=RequestSettings(api=api)) as model,
    ):
        task = asyncio.create_task(model.infer(REQUEST, on_delta))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
    usage = charged(cancelled.value)
    assert usage is not None
    assert usage.output_tokens > 1000


def test_no_more_of_a_complaint_is_searched_than_its_beginning() -> None:
    """It is searched by dozens of patterns, and one event may have 8 MiB."""
    long = "x" * 1_000_000
    complaint = complaint_in({"error": {"message": long, "code": long, "type": long, "param": long}})
    assert complaint is not None
    assert sum(map(len, (complaint.words, complaint.code, complaint.kind, complaint.parameter))) < 100_000
