"""Any OpenAI-compatible endpoint, through chat completions. The only file that imports openai.

The client library connects, authenticates and sends. Answers are read here, within the bounds of
agent.models.bounded_http, because the library buffers without a limit and loses error messages.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import httpx2
import openai

from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.bounded_http import BoundedClient, EventReader, RefusedRedirect, ServerEvent
from agent.models.chat_completions import Gathered, parsed, request_body, usage_of
from agent.models.endpoint_errors import (
    Complaint,
    UnusableAnswer,
    complaint_in,
    complaint_of,
    endpoint_error,
    is_html,
    plain,
    said_by,
)
from agent.models.model import OnDelta
from agent.state import ModelResponse

_NO_STREAM = "if it cannot stream with tools, set stream to false"
_QUOTED_CHARS = 500


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars per million tokens."""

    input_usd_per_mtok: float
    output_usd_per_mtok: float

    def __post_init__(self) -> None:
        for price in (self.input_usd_per_mtok, self.output_usd_per_mtok):
            if not 0 <= price < math.inf:
                raise ValueError(f"a price is a number of dollars, 0 or more, not {price}")

    def cost_usd(self, usage: Usage) -> float:
        input_usd = usage.input_tokens * self.input_usd_per_mtok
        return (input_usd + usage.output_tokens * self.output_usd_per_mtok) / 1_000_000


class OpenAIModel:
    """A Model behind an OpenAI-compatible endpoint. Usage that is not reported is estimated: budgets always apply."""

    def __init__(  # noqa: PLR0913 - keyword-only settings of one endpoint, which a dataclass would only wrap
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        timeout_s: float = 120.0,
        answer_timeout_s: float = 600.0,
        max_output_tokens: int | None = None,
        prices: Prices | None = None,
        extra: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create a client, without connecting.

        `base_url` defaults to OPENAI_BASE_URL, then OpenAI's endpoint; only then `api_key` defaults to OPENAI_API_KEY.
        A query in it is sent with each request. `timeout_s` bounds connecting and, in a stream, the time between two
        pieces; `answer_timeout_s` the whole answer. `max_output_tokens` is sent as max_tokens unless `extra` sets that
        or max_completion_tokens. With `prices` the usage has a cost. `extra` is added to the request's body, such as
        {"temperature": 0}. `now` returns the time since the epoch, for Retry-After dates.

        Raises ValueError for OpenAI's endpoint without a key.
        """
        self.name = name
        self._stream = stream
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._prices = prices
        self._extra = dict(extra or {})
        if max_output_tokens is not None and "max_completion_tokens" not in self._extra:
            self._extra.setdefault("max_tokens", max_output_tokens)
        self._now = now
        if api_key is None:  # a key is sent only to the endpoint that it is for
            api_key = "" if base_url else os.environ.get("OPENAI_API_KEY", "")
        base_url = base_url or os.environ.get("OPENAI_BASE_URL")
        if not (api_key or base_url):
            raise ValueError("no API key: set OPENAI_API_KEY, or give api_key")
        parts = urlsplit(base_url or "")
        host = parts.hostname or ""
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._secrets = frozenset({api_key, parts.password or "", *query.values()})
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=urlunsplit(parts._replace(query="", fragment="")) if base_url else None,
            default_query=query,
            timeout=httpx2.Timeout(timeout_s, read=timeout_s if stream else answer_timeout_s),
            max_retries=0,  # ErrorPolicy retries
            # A proxy cannot reach this machine's loopback, and must not see requests to it.
            http_client=BoundedClient(trust_env=not (host in ("localhost", "::1") or host.startswith("127."))),
        )
        shown = urlsplit(str(self._client.base_url))  # without credentials
        self._endpoint = f"{shown.scheme}://{shown.netloc.rpartition('@')[2]}{shown.path}".rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Send the request once; `on_delta` gets text as it arrives.

        Raises ModelUnavailable, ModelRefused (ContextLengthExceeded among others) or ModelNonsense. After tool calls an
        empty answer is valid: the model has nothing to add.
        """
        body, gathered = request_body(self.name, request), Gathered()
        try:
            await self._ask(body, gathered, on_delta)
            may_be_empty = bool(request.messages) and request.messages[-1].role == "tool"
            return self._response(gathered, body, may_be_empty=may_be_empty)
        except ModelError as error:
            if gathered.begun:  # else nothing is charged
                error.usage = self._usage(gathered, body)
            raise

    async def _ask(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta) -> None:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await self._read(body, gathered, on_delta)
        except TimeoutError as error:
            raise self._too_slow("finish its answer", self._answer_timeout_s, "answer_timeout_s") from error
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            whole = isinstance(error.__cause__ or error, httpx2.ReadTimeout) and not self._stream
            limit = (self._answer_timeout_s, "answer_timeout_s") if whole else (self._timeout_s, "timeout_s")
            raise self._too_slow("answer", *limit) from error
        except openai.APIStatusError as error:
            complaint, how = complaint_of(error.response.text), f"answered HTTP {error.status_code}"
            raise self._error(complaint, how, error.status_code, error.response.headers) from error
        except RefusedRedirect as error:
            raise ModelRefused(
                f"{self._endpoint} redirects to {self._said(str(error))}, and the conversation is not sent there; "
                "set base_url to the address that answers"
            ) from error
        except UnusableAnswer as error:
            raise self._nonsense(str(error)) from error
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            cause = self._said(str(error.__cause__ or error)) or "the connection was closed"
            raise ModelUnavailable(
                f"no connection to {self._endpoint}, or it was dropped: {cause}; check base_url and that it runs"
            ) from error

    async def _read(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta) -> None:
        """Read the answer: events or one document, whichever the endpoint sends."""
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if self._stream else {}
        asked = self._client.chat.completions.with_streaming_response.create(
            **body, stream=self._stream, **options, extra_body=self._extra or None
        )
        reader, done, events = EventReader(), False, 0
        async with asked as response:
            pieces = response.iter_bytes()
            async for event in _events(reader, pieces):
                events += 1
                if done := event.data.startswith("[DONE]"):
                    await _read_rest(pieces)
                    break
                if event.is_error:
                    raise self._complained(complaint_of(event.data))
                self._add(parsed(event.data), gathered, on_delta)
        if not events:
            self._take_document(reader.text, gathered, on_delta)
        elif not gathered.finish_reason:
            self._check_end(gathered, reader.text, done=done)

    def _take_document(self, text: str, gathered: Gathered, on_delta: OnDelta) -> None:
        """Add an answer that is not streamed, or raise for what came instead."""
        if is_html(text):
            said = self._said(plain(text)[:_QUOTED_CHARS])
            raise ModelRefused(f"{self._endpoint} sent an HTML page and no answer: {said!r}; check base_url")
        if not text:
            raise self._nonsense(f"an empty body; {_NO_STREAM}")
        self._add(parsed(text), gathered, on_delta)
        if not gathered.begun:
            raise self._nonsense("an answer without choices")

    def _add(self, answer: Any, gathered: Gathered, on_delta: OnDelta) -> None:
        complaint = complaint_in(answer)
        text = gathered.add(answer)
        if text:
            on_delta(text)
        if complaint is not None:
            raise self._complained(complaint)
        if gathered.endless:
            raise self._nonsense("an answer without end")

    def _check_end(self, gathered: Gathered, text: str, *, done: bool) -> None:
        """Raise if a stream without a finish reason ended too early; [DONE] after an answer is an end."""
        if text:
            raise self._nonsense(f"a stream that ended with {plain(text)[:_QUOTED_CHARS]!r}")
        if gathered.begun and not done:
            raise ModelUnavailable(f"{self._endpoint} ended its stream before the answer was complete")
        if not gathered.begun:
            raise self._nonsense(f"a stream that ended with nothing; {_NO_STREAM}")

    def _response(self, gathered: Gathered, body: Mapping[str, Any], *, may_be_empty: bool) -> ModelResponse:
        reason = gathered.finish_reason
        if reason == "error":
            raise ModelUnavailable(f"{self._endpoint} ended its answer with an error that it does not describe")
        if gathered.empty and not may_be_empty and reason not in ("length", "content_filter"):
            given = f"finish reason {self._said(reason) or 'not given'}"
            if gathered.reasoning_chars:
                raise self._nonsense(
                    f"{gathered.reasoning_chars:,} characters of reasoning and no answer ({given}); raise "
                    "max_output_tokens, or check how the server separates reasoning and answer"
                )
            raise self._nonsense(f"an empty answer ({given})")
        message = gathered.message()
        if gathered.refused and not message.tool_calls:
            reason = "refusal"
        return ModelResponse(message=message, finish_reason=reason, usage=self._usage(gathered, body))

    def _usage(self, gathered: Gathered, body: Mapping[str, Any]) -> Usage:
        usage = usage_of(gathered.usage, body, gathered.written_chars)
        return usage if self._prices is None else usage.with_(cost_usd=self._prices.cost_usd(usage))

    def _complained(self, complaint: Complaint) -> ModelError:
        """Return the error of an answer that began with HTTP 200."""
        return self._error(complaint, "ended its answer with an error", complaint.status, {})

    def _error(self, complaint: Complaint, how: str, status: int | None, headers: Mapping[str, str]) -> ModelError:
        said = f"{self._endpoint} {how}: {self._said(complaint.words)}"
        return endpoint_error(complaint, said, status=status, headers=headers, now_s=self._now(), model=self.name)

    def _too_slow(self, what: str, timeout_s: float, setting: str) -> ModelUnavailable:
        return ModelUnavailable(f"{self._endpoint} did not {what} within {timeout_s:g} s; raise the model's {setting}")

    def _said(self, message: str) -> str:
        return said_by(message, self._secrets)

    def _nonsense(self, what: str) -> ModelNonsense:
        return ModelNonsense(f"{self._endpoint}, model {self.name!r}, sent {self._said(what)}")


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
