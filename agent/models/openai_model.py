"""Asks any OpenAI-compatible endpoint, by chat completions. The only file that imports openai.

Endpoints differ: some cannot stream with tools, or end such a stream with nothing. That is one clear ModelNonsense, and
`stream=False` asks such a model without streaming.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import openai

from agent.errors import ContextLengthExceeded, ModelError, ModelNonsense, ModelUnavailable
from agent.hook import InferenceRequest
from agent.messages import Usage
from agent.model import OnDelta
from agent.models.chat_completions import Gathered, request_body, usage_of
from agent.models.endpoint_errors import is_too_long, said_by, status_error
from agent.state import ModelResponse

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Prices:
    """What a model costs, in US dollars per million tokens."""

    input_usd_per_mtok: float
    output_usd_per_mtok: float

    def __post_init__(self) -> None:
        """Raise ValueError for a price that would let a budget grow."""
        for price in (self.input_usd_per_mtok, self.output_usd_per_mtok):
            if not 0 <= price < math.inf:
                raise ValueError(f"a price is a number of dollars, 0 or more, not {price}")

    def cost_usd(self, usage: Usage) -> float:
        """Return what these tokens cost."""
        return (
            usage.input_tokens * self.input_usd_per_mtok + usage.output_tokens * self.output_usd_per_mtok
        ) / 1_000_000


class OpenAIModel:
    """A Model behind an OpenAI-compatible endpoint.

    Usage is what the endpoint reports. Where it reports nothing, or zeros, it is estimated: a quarter of the characters
    sent and received, so that no endpoint is outside the budgets.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str,
        stream: bool = True,
        timeout_s: float = 120.0,
        max_retries: int = 0,
        max_output_tokens: int | None = None,
        prices: Prices | None = None,
        extra: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Set up a client; nothing is connected yet.

        `timeout_s` bounds the wait for the connection and between two pieces of an answer. `max_retries` is the
        client's own; ErrorPolicy is the usual place for retries. `max_output_tokens` is sent as max_tokens, unless
        `extra` says it, or max_completion_tokens, itself. With `prices` the usage has a cost. `extra` goes into the
        request's body as it is, such as {"temperature": 0}. Without `base_url` the client's usual endpoint is asked.
        `now` is the time since the epoch, by which an endpoint's Retry-After date is read.
        """
        self._name = name
        self._stream = stream
        self._timeout_s = timeout_s
        self._prices = prices
        self._extra = dict(extra or {})
        if max_output_tokens is not None and "max_completion_tokens" not in self._extra:
            self._extra.setdefault("max_tokens", max_output_tokens)
        self._now = now
        host = urlsplit(base_url or "").hostname or ""
        loopback = host in _LOOPBACK or host.startswith("127.")
        self._api_key = api_key
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Ask once; text goes to `on_delta` as it comes.

        Raises ModelUnavailable, with retry_after_s where the endpoint says it, ModelRefused, of which
        ContextLengthExceeded is one, or ModelNonsense.
        """
        body, gathered = request_body(self._name, request), Gathered()
        try:
            return await self._asked(body, gathered, on_delta)
        except ModelError as error:
            if gathered.begun:  # else nothing was answered, and nothing is charged
                error.usage = self._usage(gathered, body)
            raise

    async def _asked(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta) -> ModelResponse:
        try:
            await (self._streamed if self._stream else self._whole)(body, gathered, on_delta)
            return self._response(gathered, body)
        except ModelError:
            raise
        except openai.APITimeoutError as error:
            raise ModelUnavailable(
                f"{self._endpoint} did not answer within {self._timeout_s:g} s; raise the model's timeout_s"
            ) from error
        except openai.APIConnectionError as error:
            cause = self._said(str(error.__cause__ or "")) or "the connection was closed"
            raise ModelUnavailable(
                f"no connection to {self._endpoint}, or it was dropped: {cause}; check base_url and that it runs"
            ) from error
        except openai.APIStatusError as error:
            raise status_error(
                error.status_code,
                f"{self._endpoint} answered HTTP {error.status_code}: {self._said(error.message)}",
                code=error.code,
                headers=error.response.headers,
                now_s=self._now(),
                model=self._name,
            ) from error
        except openai.APIError as error:
            said = f"{self._endpoint} ended its answer with an error: {self._said(error.message)}"
            if is_too_long(said, error.code):
                raise ContextLengthExceeded(f"{said}; send fewer or shorter messages") from error
            # An error in the middle of a stream: the endpoint may well answer the next time.
            raise ModelUnavailable(said) from error
        except Exception as error:
            # The client library raises many things when an answer is not what the protocol says: undecodable JSON, a
            # missing field, a list where an object was expected. All of them mean the same to us.
            what = self._said(f"{type(error).__name__}: {error}")
            raise self._nonsense(f"an answer that cannot be read ({what})") from error

    async def _streamed(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta) -> None:
        stream = await self._client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}, extra_body=self._extra or None
        )
        async with stream:
            async for chunk in stream:
                text = gathered.add(chunk)
                if text:
                    on_delta(text)
                if gathered.endless:
                    raise self._nonsense("an answer without end")
        if not gathered.finish_reason and gathered.empty:
            raise self._nonsense(
                "a stream that ended with nothing; if it cannot stream with tools, set stream to false"
            )
        if not gathered.finish_reason:
            raise ModelUnavailable(f"{self._endpoint} ended its stream before the answer was complete")

    async def _whole(self, body: dict[str, Any], gathered: Gathered, on_delta: OnDelta) -> None:
        completion = await self._client.chat.completions.create(**body, stream=False, extra_body=self._extra or None)
        if not completion.choices:
            raise self._nonsense("an answer without choices")
        text = gathered.add_whole(completion)
        if gathered.endless:
            raise self._nonsense("an answer without end")
        if text:
            on_delta(text)

    def _response(self, gathered: Gathered, body: Mapping[str, Any]) -> ModelResponse:
        if gathered.empty and gathered.finish_reason not in ("length", "content_filter"):
            raise self._nonsense(f"an empty answer (finish reason {gathered.finish_reason or 'not given'})")
        return ModelResponse(
            message=gathered.message(), finish_reason=gathered.finish_reason, usage=self._usage(gathered, body)
        )

    def _usage(self, gathered: Gathered, body: Mapping[str, Any]) -> Usage:
        usage = usage_of(gathered.usage, body, gathered.written_chars)
        if self._prices is None:
            return usage
        return usage.model_copy(update={"cost_usd": self._prices.cost_usd(usage)})

    def _said(self, message: str) -> str:
        return said_by(message, self._api_key)

    def _nonsense(self, what: str) -> ModelNonsense:
        return ModelNonsense(f"{self._endpoint}, model {self._name!r}, sent {what}")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
