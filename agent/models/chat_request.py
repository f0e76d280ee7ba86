"""The requests of chat completions."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agent.hooks.hook import InferenceRequest
from agent.messages import ToolCall, ToolSpec
from agent.models.provider_data import kept_for
from agent.models.settings import RequestSettings, ResponseFormat
from agent.models.shown_message import ShownFile, ShownMessage, shown_messages
from agent.models.tool_names import wire_name

_USUAL = RequestSettings()


def request_body(
    model: str, request: InferenceRequest, settings: RequestSettings = _USUAL, provider: str | None = None
) -> dict[str, Any]:
    """Return the request: equal requests have equal bytes, and a longer thread begins with those of a shorter one.

    `provider`, the endpoint and the model in one text, gets back what it wants of its own answers.
    """
    messages = [_message(shown, provider) for shown in shown_messages(request.messages, request.contents)]
    if request.system_prompt:
        messages.insert(0, {"role": "system", "content": request.system_prompt})
    if settings.prompt_cache == "cache_control":
        _mark_cacheable(messages)
    body: dict[str, Any] = {"model": model, "messages": messages, **_asked(request, settings)}
    if request.tools:
        body["tools"] = [{"type": "function", "function": shown_function(tool)} for tool in request.tools]
    return {**body, **settings.extra}


def _asked(request: InferenceRequest, settings: RequestSettings) -> dict[str, Any]:
    choice = settings.tool_choice
    named = choice in (None, "auto", "none", "required")
    bounded = {"max_tokens", "max_completion_tokens"} & settings.extra.keys()
    asked: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "stop": [*settings.stop] or None,
        "reasoning_effort": settings.reasoning_effort,
        settings.max_tokens_name or "max_tokens": None if bounded else settings.max_output_tokens,
        "response_format": response_format(settings.response_format, request.output_schema),
        "prompt_cache_key": cache_key(request.thread) if settings.prompt_cache == "prompt_cache_key" else None,
    }
    if request.tools:  # endpoints refuse these without tools
        asked["tool_choice"] = choice if named else {"type": "function", "function": {"name": wire_name(str(choice))}}
        asked["parallel_tool_calls"] = settings.parallel_tool_calls
    return {name: value for name, value in asked.items() if value is not None}


def cache_key(thread: str) -> str | None:
    """Return a key for a thread: a digest, because endpoints limit its length, and an id is nothing to them."""
    return hashlib.sha256(thread.encode()).hexdigest()[:32] if thread else None


def response_format(kind: ResponseFormat | None, schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return how an answer is made to fit a schema, None if it is not."""
    if kind is None or schema is None:
        return None
    named = {"json_schema": {"name": "answer", "schema": schema}} if kind == "json_schema" else {}
    return {"type": kind, **named}


def _mark_cacheable(messages: list[dict[str, Any]]) -> None:
    """Ask for a cache of the prefixes that end with the system prompt and with the last two messages to the model.

    Anthropic's models look for the longest marked prefix that they know, so the last but one is what the request before
    this one marked last.
    """
    spoken = [message for message in messages if message["role"] != "assistant"]
    for message in messages:
        said = message["content"]
        if said and isinstance(said, str):  # all, so that a message has the same bytes once it is no longer marked
            message["content"] = [_part(said)]
    for message in {id(message): message for message in (*spoken[:1], *spoken[-2:])}.values():
        texts = [part for part in message["content"] or () if part["type"] == "text"]
        if texts:  # a message of files alone has none, and only texts can be marked everywhere
            texts[-1]["cache_control"] = {"type": "ephemeral"}


def _message(shown: ShownMessage, provider: str | None) -> dict[str, Any]:
    message = shown.message
    back = kept_for(message, provider)
    # With tool calls all endpoints accept an empty text: some refuse null, others require the key.
    said: dict[str, Any] = {"role": message.role, "content": [*map(_part, shown.parts)] or message.content}
    if message.tool_calls:
        said["tool_calls"] = [*map(_call, message.tool_calls)]
        extras = back.get("calls")
        if isinstance(extras, list) and len(extras) == len(message.tool_calls):  # else a hook changed the calls
            for call, extra in zip(said["tool_calls"], extras, strict=True):
                call.update(extra)
    elif message.role == "assistant" and not message.content:
        said["content"] = "(no text)"  # some endpoints refuse an empty answer in a history
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    said |= back.get("message", {})
    return said


def _part(part: str | ShownFile) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.is_image:
        return {"type": "image_url", "image_url": {"url": part.data_uri()}}
    return {"type": "file", "file": {"filename": part.name, "file_data": part.data_uri()}}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": sent_function(call)}


def shown_function(tool: ToolSpec) -> dict[str, Any]:
    """Return what a model is shown of a tool."""
    return {"name": wire_name(tool.name), "description": tool.description, "parameters": tool.parameters}


def sent_function(call: ToolCall) -> dict[str, str]:
    """Return a call's name and arguments as endpoints accept them.

    They refuse a name that the model made up, and broken JSON, which the call's result quotes.
    """
    return {"name": wire_name(call.name), "arguments": "{}" if call.arguments is None else json.dumps(call.arguments)}
