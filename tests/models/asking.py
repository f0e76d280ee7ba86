"""Asks a real server with the real driver."""

from __future__ import annotations

from typing import Any

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolSpec
from agent.models.model import Model, OnDelta
from agent.models.openai_model import OpenAIModel
from agent.models.settings import RequestSettings
from agent.state import ModelResponse
from tests.models.servers import MODEL, ModelServer

# What makes an answer short, and the same each time.
_REPEATED = {"temperature": 0.0, "seed": 1, "max_output_tokens": 24}


def model_of(server: ModelServer, *, stream: bool = True, name: str = MODEL, **settings: Any) -> OpenAIModel:
    """Return the driver for a server."""
    given: dict[str, Any] = {**_REPEATED, **settings}
    return OpenAIModel(name, base_url=server.base_url, stream=stream, settings=RequestSettings(**given))


def request(*said: str, tools: tuple[ToolSpec, ...] = (), system_prompt: str = "Be brief.") -> InferenceRequest:
    """Return a request with the user's messages."""
    return InferenceRequest(system_prompt, tuple(Message(role="user", content=text) for text in said), tools)


async def ask(model: Model, asked: InferenceRequest, on_delta: OnDelta = lambda _: None) -> ModelResponse:
    """Ask once, and close the model if it is one that connects."""
    if isinstance(model, OpenAIModel):
        async with model:
            return await model.infer(asked, on_delta)
    return await model.infer(asked, on_delta)


WEATHER = ToolSpec(
    name="weather",
    description="Return the weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
CLOCK = ToolSpec(
    name="clock",
    description="Return the time in a time zone.",
    parameters={
        "type": "object",
        "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
        "required": ["zone"],
        "additionalProperties": False,
    },
)
