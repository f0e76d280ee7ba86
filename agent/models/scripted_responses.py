"""The answers of a scripted model server in the format of the Responses API.

A turn's reasoning becomes an item that says it in plain and has an encrypted form, as OpenAI sends it; the next request
of a client should have it unchanged.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from agent.models.scripted_model import Answer

Pieces = Callable[[str], list[str]]


def document(answer: Answer) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    usage = answer.usage
    details = {"incomplete_details": {"reason": "max_output_tokens"}} if answer.finish_reason == "length" else {}
    return {
        **_frame(),
        **details,
        "status": "incomplete" if details else "completed",
        "output": _output(answer),
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        },
    }


def _frame() -> dict[str, Any]:
    return {"id": "resp_scripted", "object": "response", "created_at": 0, "model": "scripted", "error": None}


def _output(answer: Answer) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        sealed = f"sealed:{answer.index}:{len(answer.reasoning)}"
        reasoning = {"id": f"rs_{answer.index}", "type": "reasoning", "summary": summary}
        output.append(reasoning | {"encrypted_content": sealed})
    if answer.text or not answer.calls:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        same = {"type": "message", "status": "completed", "role": "assistant"}
        output.append({"id": f"msg_{answer.index}", **same, "content": content})
    for position, call in enumerate(answer.calls):
        same = {"type": "function_call", "status": "completed", "call_id": call["id"]}
        output.append({"id": f"fc_{answer.index}_{position}", **same, **call["function"]})
    return output


def events(answer: Answer, pieces: Pieces) -> Iterator[str]:
    """Yield the events of a streamed answer; those of parallel calls are interleaved, which is harder on a client."""
    whole = document(answer)
    numbered = list(enumerate(whole["output"]))
    yield _event("response.created", response={**_frame(), "status": "in_progress", "output": []})
    for index, item in numbered:
        empty = {"summary": [], "content": [], "arguments": "", "encrypted_content": ""}
        begun = item | {name: value for name, value in empty.items() if name in item}
        yield _event("response.output_item.added", output_index=index, item=begun)
    deltas = [list(_deltas(index, item, pieces)) for index, item in numbered]
    calls = [position for position, item in numbered if item["type"] == "function_call"]
    for position, one in enumerate(deltas):
        if position not in calls:
            yield from one
    for several in zip_longest(*(deltas[position] for position in calls)):
        yield from (event for event in several if event is not None)
    for index, item in numbered:
        yield _event("response.output_item.done", output_index=index, item=item)
    yield _event(f"response.{whole['status']}", response=whole)


def _deltas(index: int, item: Mapping[str, Any], pieces: Pieces) -> Iterator[str]:
    place = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            kind, text, place = "reasoning_summary_text", item["summary"][0]["text"], place | {"summary_index": 0}
        case "message":
            kind, text, place = "output_text", item["content"][0]["text"], place | {"content_index": 0}
        case _:
            kind, text = "function_call_arguments", item["arguments"]
    for piece in pieces(text):
        yield _event(f"response.{kind}.delta", **place, delta=piece)


def begun() -> Sequence[str]:
    """Return the events of an answer that has begun, before a connection is dropped."""
    delta = _event("response.output_text.delta", item_id="msg_0", output_index=0, delta="I was about to")
    return [_event("response.created", response=_frame()), delta]


def nothing() -> dict[str, Any]:
    """Return an answer without output."""
    return {**_frame(), "status": "completed", "output": []}


def _event(kind: str, **payload: Any) -> str:
    return json.dumps({"type": kind, **payload})
