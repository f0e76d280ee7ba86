"""The models of one tenant: equal settings share a client, and only so many requests are under way.

Requests wait for their turn in the order in which they come. The wait is reported and is not the model's time. So a run
with many subagents takes its turns like others, and can neither fill an endpoint nor use up this process's descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import structlog

from agent.hooks.hook import InferenceRequest
from agent.models.model import Model, OnDelta, OnWait
from agent.state import ModelResponse
from gateway.config.model_settings import CONCURRENT_INFERENCES, ModelSettings
from gateway.telemetry.observed_model import ObservedModel
from gateway.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from agent.models.openai_model import OpenAIModel

log = structlog.get_logger(__name__)
# The endpoint's client library is a third of what a gateway imports: none that only calls tools waits for it.
_DRIVER = "agent.models.openai_model"


class Models:
    """Opens models by their settings."""

    def __init__(self, requests_limit: int = CONCURRENT_INFERENCES, telemetry: Telemetry | None = None) -> None:
        """Let `requests_limit` requests be under way at once, to all of the models together."""
        self._telemetry = telemetry
        self._turns = _Turns(requests_limit)
        self._opened: dict[ModelSettings, _Endpoint] = {}

    def of(self, settings: ModelSettings) -> Model:
        """Return the model; nothing is connected yet. Raises Misconfigured when the environment has no key for it."""
        if settings not in self._opened:
            self._opened[settings] = _Endpoint(settings)
        model: Model = self._opened[settings]
        if self._telemetry is not None and self._telemetry.on:
            model = ObservedModel(model, self._telemetry, settings.resolved_base_url())
        return _InTurn(model, self._turns)

    async def close(self) -> None:
        """Close the connections of all of them."""
        for closed in await asyncio.gather(*(model.close() for model in self._opened.values()), return_exceptions=True):
            if isinstance(closed, Exception):  # nobody is left to act on it, and the run is settled all the same
                log.warning("a model's connections did not close", error=str(closed))


class _Turns:
    """Lets so many requests be under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)

    @contextlib.asynccontextmanager
    async def one(self, on_wait: OnWait | None) -> AsyncIterator[None]:
        """Have a turn; where one must be waited for, report that."""
        reason = f"this tenant has as many inferences under way as it may (concurrent_inferences: {self._limit})"
        with on_wait(reason) if on_wait is not None and self._free.locked() else contextlib.nullcontext():
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()


class _InTurn:
    """A model that is asked when it is one's turn."""

    def __init__(self, model: Model, turns: _Turns, on_wait: OnWait | None = None) -> None:
        self._model = model
        self._turns = turns
        self._on_wait = on_wait

    @property
    def name(self) -> str:
        return self._model.name

    def reporting(self, on_wait: OnWait) -> Model:
        return _InTurn(self._model, self._turns, on_wait)

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        async with self._turns.one(self._on_wait):
            return await self._model.infer(request, on_delta)


class _Endpoint:
    """A model whose client is made when it is asked for the first time."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._api_key = settings.resolved_api_key()
        self._opened: OpenAIModel | None = None

    @property
    def name(self) -> str:
        return self._settings.resolved_name()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        if _DRIVER not in sys.modules:
            await asyncio.to_thread(importlib.import_module, _DRIVER)
        if self._opened is None:
            self._opened = _opened(self._settings, self._api_key)
        return await self._opened.infer(request, on_delta)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def _opened(settings: ModelSettings, api_key: str) -> OpenAIModel:
    from agent.models.openai_model import OpenAIModel, Prices  # noqa: PLC0415 - see _DRIVER

    prices = None
    if settings.input_usd_per_mtok is not None and settings.output_usd_per_mtok is not None:
        prices = Prices(settings.input_usd_per_mtok, settings.output_usd_per_mtok)
    return OpenAIModel(
        settings.resolved_name(),
        base_url=settings.resolved_base_url(),
        api_key=api_key,
        stream=settings.stream,
        timeout_s=settings.timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
        max_output_tokens=settings.max_output_tokens,
        prices=prices,
    )
