"""Any OpenAI-compatible endpoint, through chat completions or the Responses API."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import httpx2

from agent.errors import ModelError, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models import chat_completions, chat_request, responses
from agent.models.bounded_http import EventReader, ServerEvent
from agent.models.chat_completions import is_call
from agent.models.endpoint import Endpoint
from agent.models.endpoint_errors import (
    Complaint,
    UnusableAnswer,
    complaint_in,
    complaint_of,
    is_html,
    parsed,
    plain,
)
from agent.models.endpoint_meanings import CUT_OFF
from agent.models.metered_model import charge_failure
from agent.models.model import OnDelta
from agent.models.prices import Prices
from agent.models.reported_usage import usage_of
from agent.models.settings import Api, Connection, MaxTokensName, RequestSettings
from agent.models.tool_names import with_own_names
from agent.state import ModelResponse

Gathered = chat_completions.Gathered | responses.Gathered
RequestBody = Callable[[str, InferenceRequest, RequestSettings, str | None], dict[str, Any]]

_WIRE: dict[Api, tuple[RequestBody, Callable[[], Gathered]]] = {
    "chat_completions": (chat_request.request_body, chat_completions.Gathered),
    "responses": (responses.request_body, responses.Gathered),
}

# What a request can do without, if an endpoint does not take it.
_OPTIONAL = frozenset({"stream_options", "include", "store"})
_MAX_TOKENS_NAMES: tuple[MaxTokensName, MaxTokensName] = ("max_tokens", "max_completion_tokens")


class _EmptyStream(Exception):
    """A stream ended without anything in it."""


class OpenAIModel:
    """A Model behind an OpenAI-compatible endpoint. Usage that is not reported is estimated: budgets always apply."""

    def __init__(  # noqa: PLR0913 - all keyword-only: most models set two or three of them
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        settings: RequestSettings | None = None,
        connection: Connection | None = None,
        prices: Prices | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create a client, without connecting.

        `base_url` defaults to OPENAI_BASE_URL, then OpenAI's endpoint; only then `api_key` defaults to OPENAI_API_KEY.
        Without a key no Authorization is sent. A query in the URL is sent with each request. With `prices` the usage
        has a cost. `now` returns the time since the epoch, for Retry-After dates.

        Raises ValueError for OpenAI's endpoint without a key, and for certificates that cannot be used.
        """
        self.name = name
        self._stream = stream
        self._settings = settings or RequestSettings()
        self._prices = prices
        self._endpoint = Endpoint(name, base_url, api_key, connection or Connection(), now)
        self._request_body, self._gathered = _WIRE[self._settings.api]
        self._provider = f"{self._endpoint.address} {name}" if self._settings.send_reasoning else None
        self._not_taken: set[str] = set()
        self._renamed = False  # whether max_tokens_name has changed
        self._answers_whole = False  # whether an answer came whole after its stream was empty
        if self._settings.max_tokens_name is None and "//api.openai.com" in self._endpoint.address:
            self._settings = replace(self._settings, max_tokens_name="max_completion_tokens")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._endpoint.close()

    @property
    def learned(self) -> dict[str, str]:
        """The settings that the endpoint has been found to need, by name."""
        renamed = {"max_tokens_name": str(self._settings.max_tokens_name)} if self._renamed else {}
        return renamed | ({"stream": "false"} if self._answers_whole else {})

    async def listed(self) -> Any:
        """Return the endpoint's own description of the model, as JSON; None if it has none. Raises ModelError."""
        return await self._endpoint.listed()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Send the request; `on_delta` gets text and reasoning as they arrive.

        It is sent again where the endpoint refuses a parameter that has another name, which is remembered, and where a
        stream is empty. Raises ModelUnavailable, ModelRefused (ContextLengthExceeded among others) or ModelNonsense.
        After tool calls an empty answer is valid: the model has nothing to add.
        """
        may_be_empty = bool(request.messages) and request.messages[-1].role == "tool"
        stream, closing = self._stream, False
        refused: set[str] = set()
        while True:
            body, gathered = await self._body(request, stream=stream), self._gathered()
            try:
                await self._ask(body, gathered, on_delta, stream=stream)
                self._answers_whole = self._answers_whole or stream != self._stream
                return self._response(gathered, request, may_be_empty=may_be_empty)
            except _EmptyStream:
                # llama-cpp-python begins a stream before it looks at the request, so an error comes too late to be
                # said. Asked for the whole answer, it says that the prompt is too long, or calls tools after all.
                stream, closing = False, True
            except ModelError as error:
                unanswered = isinstance(error, ModelUnavailable) and error.unanswered
                if gathered.begun or unanswered:  # else nothing is charged
                    error.usage = self._usage(gathered, request)
                elif isinstance(error, ModelRefused) and self._adapted(error.unsupported_parameter, body, refused):
                    continue
                elif closing and isinstance(error, ModelUnavailable):
                    closing = False  # the server was closing the connection of the empty stream: take another one
                    continue
                raise
            except asyncio.CancelledError as error:
                if gathered.begun:  # also calls, whose pieces `on_delta` does not get
                    charge_failure(error, self._usage(gathered, request))
                raise

    async def _body(self, request: InferenceRequest, *, stream: bool) -> dict[str, Any]:
        asked = (self.name, request, self._settings, self._provider)
        # Files become base64, which the event loop must not wait for.
        body = await asyncio.to_thread(self._request_body, *asked) if request.contents else self._request_body(*asked)
        if stream and self._settings.api == "chat_completions":
            body = {"stream_options": {"include_usage": True}, **body}
        return {name: value for name, value in body.items() if name not in self._not_taken}

    def _adapted(self, parameter: str | None, sent: Mapping[str, Any], refused: set[str]) -> bool:
        """Remember what an endpoint does not take; return whether to ask again without it.

        What counts is what this request sent, and what of that was `refused`: requests that are under way at once learn
        the same.
        """
        if parameter is None or parameter not in sent or parameter in refused:
            return False
        refused.add(parameter)
        if parameter in _OPTIONAL:
            self._not_taken.add(parameter)
            return True
        if parameter not in _MAX_TOKENS_NAMES or parameter in self._settings.extra:
            return False
        other = _MAX_TOKENS_NAMES[parameter == "max_tokens"]
        self._renamed = other not in refused  # else it takes neither
        if self._renamed:
            self._settings = replace(self._settings, max_tokens_name=other)
        return self._renamed

    async def _ask(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta, *, stream: bool) -> None:
        """Read the answer: events or one document, whichever the endpoint sends. Raises _EmptyStream, or ModelError."""
        reader, done, events = EventReader(), False, 0
        async with self._endpoint.answer(body, self._settings.api, stream=stream) as pieces:
            async for event in _events(reader, pieces):
                events += 1
                if done := event.data.startswith("[DONE]"):
                    await _read_rest(pieces)
                    break
                if event.is_error:
                    raise self._endpoint.complained(complaint_of(event.data))
                self._add(parsed(event.data), gathered, on_delta)
                if gathered.ended:
                    await _read_rest(pieces)
                    break
            if stream and not (events or reader.text):
                raise _EmptyStream
            if not events:
                self._take_document(reader.text, gathered, on_delta)
            elif not gathered.finish_reason:
                self._check_end(gathered, reader.text, done=done)

    def _take_document(self, text: str, gathered: Gathered, on_delta: OnDelta) -> None:
        """Add an answer that is not streamed, or raise for what came instead."""
        if is_html(text):
            said = self._endpoint.said(plain(text))
            raise ModelRefused(f"{self._endpoint.address} sent an HTML page and no answer: {said!r}; check base_url")
        if not text:
            raise self._endpoint.nonsense("an empty body")
        self._add(parsed(text), gathered, on_delta)
        if not gathered.begun:
            raise self._endpoint.nonsense("an answer without choices")

    def _add(self, answer: Any, gathered: Gathered, on_delta: OnDelta) -> None:
        complaint = complaint_in(answer)
        gathered.add(answer).deliver(on_delta)
        if complaint is not None:
            raise self._endpoint.complained(complaint)
        if gathered.endless:
            raise self._endpoint.nonsense("an answer without end")

    def _check_end(self, gathered: Gathered, text: str, *, done: bool) -> None:
        """Raise if a stream without a finish reason ended too early; [DONE] after an answer is an end."""
        if text:
            raise self._endpoint.nonsense(f"a stream that ended with {plain(text)!r}")
        if gathered.begun and not done:
            raise ModelUnavailable(
                f"{self._endpoint.address} ended its stream before the answer was complete; {CUT_OFF}"
            )
        if not gathered.begun:
            raise self._endpoint.nonsense("a stream that ended with nothing")

    def _response(self, gathered: Gathered, request: InferenceRequest, *, may_be_empty: bool) -> ModelResponse:
        reason = gathered.finish_reason
        if reason == "error":
            raise self._endpoint.complained(Complaint("it does not say which"))
        if gathered.empty and not may_be_empty and reason not in ("length", "content_filter"):
            given = f"finish reason {(reason or 'not given') if len(reason) < 64 else 'of no sense'}"
            if gathered.reasoning_chars:
                raise self._endpoint.nonsense(
                    f"{gathered.reasoning_chars:,} characters of reasoning and no answer ({given})"
                )
            raise self._endpoint.nonsense(f"an empty answer ({given})")
        message = with_own_names(gathered.message(self._provider), request.tools)
        if request.tools and not message.tool_calls and reason != "length" and is_call(message.content):
            raise self._endpoint.nonsense(f"a tool call as text: {plain(message.content)!r}")
        if gathered.refused and not message.tool_calls:
            reason = "refusal"
        usage = self._usage(gathered, request)
        return ModelResponse(message=message, finish_reason=reason, usage=usage, model=self.name)

    def _usage(self, gathered: Gathered, request: InferenceRequest) -> Usage:
        usage = usage_of(gathered.usage, request, gathered.written_chars)
        return usage if self._prices is None else usage.with_(cost_usd=self._prices.cost_usd(usage))


async def _events(reader: EventReader, pieces: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    async for piece in pieces:
        for event in reader.feed(piece):
            yield event
    for event in reader.finish():
        yield event


async def _read_rest(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end if it comes at once, so that the connection can be reused."""
    with contextlib.suppress(TimeoutError, httpx2.TransportError, UnusableAnswer):
        async with asyncio.timeout(0.1):
            async for _ in pieces:
                pass
