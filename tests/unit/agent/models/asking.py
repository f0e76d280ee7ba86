"""Asks a model once, and what an endpoint may answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolCall
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.settings import Connection
from agent.state import ModelResponse

REQUEST = InferenceRequest("be brief", (Message(role="user", content="hello"),), ())
_CALL = ToolCall(id="call_1", name="ls", arguments={})
AFTER_TOOLS = InferenceRequest(
    "be brief",
    (
        Message(role="user", content="hello"),
        Message(role="assistant", tool_calls=(_CALL,)),
        Message(role="tool", tool_call_id="call_1", content="[]"),
    ),
    (),
)
BOTH = pytest.mark.parametrize("stream", [True, False])


class Deltas:
    """What arrives of an answer, piece by piece."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []

    def __call__(self, text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        assert shown
        (self.reasoning if reasoning else self.text).append(text)


async def ask_at(base_url: str, *, request: InferenceRequest = REQUEST, **options: Any) -> ModelResponse:
    """Ask the endpoint there."""
    known: dict[str, Any] = {"api_key": "sk-secret", "connection": Connection(idle_timeout_s=20), **options}
    async with OpenAIModel("m", base_url=base_url, **known) as model:
        return await model.infer(request, no_deltas)


def completion(message: dict[str, Any], usage: Any = None, finish_reason: str | None = "stop") -> str:
    """Return an answer that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": usage})


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    """Return a chunk of a stream, as JSON."""
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def sse(text: str) -> str:
    """Return a stream that says a text."""
    return f"data: {chunk({'content': text})}\n\ndata: {chunk({}, 'stop')}\n\ndata: [DONE]\n\n"
