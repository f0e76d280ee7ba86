"""Asks any OpenAI-compatible endpoint, by chat completions. The only file that imports openai.

Endpoints differ: some cannot stream with tools, or end such a stream with nothing. That is one clear ModelNonsense, and
`stream=False` asks such a model without streaming.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hook import InferenceRequest
from agent.messages import Message, ToolCall, Usage
from agent.model import OnDelta
from agent.state import ModelResponse

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# What a response may take in this process; an endpoint is not trusted to end.
_LIMIT_CHARS = 4 * 1024 * 1024
_LIMIT_CALLS = 128


class OpenAIModel:
    """A Model behind an OpenAI-compatible endpoint."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str,
        stream: bool = True,
        timeout_s: float = 120.0,
        max_retries: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Set up a client; nothing is connected yet.

        `timeout_s` bounds the wait for the connection and between two pieces of an answer. `max_retries` is the
        client's own; ErrorPolicy is the usual place for retries. `extra` goes into the request's body as it is, such as
        {"temperature": 0}. Without `base_url` the client's usual endpoint is asked.
        """
        self._name = name
        self._stream = stream
        self._timeout_s = timeout_s
        self._extra = dict(extra or {})
        host = urlsplit(base_url or "").hostname or ""
        loopback = host in _LOOPBACK or host.startswith("127.")
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=base_url,
            timeout=timeout_s,
            max_retries=max_retries,
            # A proxy of the environment cannot reach this machine's loopback, and must not see what goes there.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if loopback else None,
        )
        self._endpoint = _without_credentials(str(self._client.base_url))

    @property
    def name(self) -> str:
        """The model's name at the endpoint."""
        return self._name

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Ask once; text goes to `on_delta` as it comes. Raises ModelUnavailable, ModelRefused or ModelNonsense."""
        body = self._body(request)
        try:
            if self._stream:
                return await self._streamed(body, on_delta)
            return self._whole(await self._client.chat.completions.create(**body, stream=False), on_delta)
        except ModelError:
            raise
        except openai.APITimeoutError as error:
            raise ModelUnavailable(
                f"{self._endpoint} did not answer within {self._timeout_s:g} s; raise the model's timeout_s"
            ) from error
        except openai.APIConnectionError as error:
            cause = str(error.__cause__ or "") or "the connection was closed"
            raise ModelUnavailable(
                f"no connection to {self._endpoint}, or it was dropped: {cause}; check base_url and that it runs"
            ) from error
        except openai.APIStatusError as error:
            raise self._status_error(error) from error
        except openai.APIError as error:
            # The endpoint sent an error in the middle of its stream: it may well answer the next time.
            raise ModelUnavailable(f"{self._endpoint} ended its answer with an error: {error.message}") from error
        except Exception as error:
            # The client library raises many things when an answer is not what the protocol says: undecodable JSON, a
            # missing field, a list where an object was expected. All of them mean the same to us.
            raise self._nonsense(f"an answer that cannot be read ({type(error).__name__}: {error})") from error

    def _body(self, request: InferenceRequest) -> dict[str, Any]:
        messages = [_message(message) for message in request.messages]
        if request.system_prompt:
            messages.insert(0, {"role": "system", "content": request.system_prompt})
        body: dict[str, Any] = {"model": self._name, "messages": messages}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        if self._extra:
            body["extra_body"] = self._extra
        return body

    async def _streamed(self, body: dict[str, Any], on_delta: OnDelta) -> ModelResponse:
        gathered = _Gathered()
        stream = await self._client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        async with stream:
            async for chunk in stream:
                text = gathered.add(chunk)
                if text:
                    on_delta(text)
                if gathered.chars > _LIMIT_CHARS or len(gathered.calls) > _LIMIT_CALLS:
                    raise self._nonsense("an answer without end")
        if not gathered.finish_reason and not gathered.text and not gathered.calls:
            raise self._nonsense(
                "a stream that ended with nothing; if it cannot stream with tools, set stream to false"
            )
        if not gathered.finish_reason:
            raise ModelUnavailable(f"{self._endpoint} ended its stream before the answer was complete")
        return self._response(
            "".join(gathered.text),
            [(call.id, call.name, "".join(call.arguments)) for _, call in sorted(gathered.calls.items())],
            gathered.finish_reason,
            gathered.usage,
        )

    def _whole(self, completion: ChatCompletion, on_delta: OnDelta) -> ModelResponse:
        if not completion.choices:
            raise self._nonsense("an answer without choices")
        choice = completion.choices[0]
        calls = [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ]
        text = choice.message.content or ""
        if text:
            on_delta(text)
        return self._response(text, calls, choice.finish_reason or "", _usage(completion.usage))

    def _response(
        self, text: str, calls: list[tuple[str, str, str]], finish_reason: str, usage: Usage
    ) -> ModelResponse:
        if not text and not calls and finish_reason not in ("length", "content_filter"):
            raise self._nonsense(f"an empty answer (finish reason {finish_reason or 'not given'})")
        return ModelResponse(
            message=Message(role="assistant", content=text, tool_calls=tuple(_tool_call(*call) for call in calls)),
            finish_reason=finish_reason,
            usage=usage,
        )

    def _status_error(self, error: openai.APIStatusError) -> ModelError:
        said = f"{self._endpoint} answered HTTP {error.status_code}: {error.message}"
        match error.status_code:
            case 401 | 403:
                return ModelRefused(f"{said}; check the model's API key and what it may use")
            case 404:
                return ModelRefused(f"{said}; check base_url and the model's name {self._name!r}")
            case 408 | 409 | 429 | 500 | 501 | 502 | 503 | 504 | 529:
                return ModelUnavailable(f"{said}; try again later")
            case status if status >= 500:
                return ModelUnavailable(f"{said}; try again later")
            case _:
                return ModelRefused(f"{said}; the request does not suit this endpoint")

    def _nonsense(self, what: str) -> ModelNonsense:
        return ModelNonsense(f"{self._endpoint}, model {self._name!r}, sent {what}")


@dataclass
class _GatheredCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass
class _Gathered:
    """What has come of a stream."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, _GatheredCall] = field(default_factory=dict)
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    chars: int = 0

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Take a chunk; return the text in it."""
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.delta is None:  # some endpoints end with a choice that has no delta
            return ""
        for fragment in choice.delta.tool_calls or ():
            call = self.calls.setdefault(fragment.index, _GatheredCall())
            call.id = fragment.id or call.id
            if fragment.function is not None:
                call.name = fragment.function.name or call.name
                call.arguments.append(fragment.function.arguments or "")
                self.chars += len(call.arguments[-1])
        text = choice.delta.content or ""
        if text:
            self.text.append(text)
            self.chars += len(text)
        return text


def _usage(reported: Any) -> Usage:
    if reported is None:
        return Usage()
    return Usage(input_tokens=reported.prompt_tokens or 0, output_tokens=reported.completion_tokens or 0)


def _tool_call(id_: str, name: str, raw: str) -> ToolCall:
    """Return the call; arguments that are not a JSON object are kept raw, for the model to be shown."""
    known = {"id": id_ or f"call_{uuid.uuid4().hex}", "name": name, "raw_arguments": raw}
    try:
        # No text at all is how several endpoints write "no arguments".
        return ToolCall(**known, arguments=json.loads(raw) if raw.strip() else {})
    except (ValueError, ValidationError, RecursionError):
        return ToolCall(**known, arguments=None)


def _message(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["content"] = message.content or None
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    return said


def _arguments(call: ToolCall) -> str:
    # Endpoints refuse a history with broken JSON in it; what the model wrote is quoted in the call's result.
    return "{}" if call.arguments is None else json.dumps(call.arguments)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
