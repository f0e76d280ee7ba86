"""The models of one tenant: equal settings share a client, and the number of concurrent requests is limited.

Requests run in the order in which they arrive. Waiting is reported, and does not count as the model's time. So a run
with many subagents can neither flood an endpoint nor use up this process's descriptors.
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
from gateway.telemetry.observed import ObservedModel
from gateway.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from agent.models.openai_model import OpenAIModel

log = structlog.get_logger(__name__)
# The client library is a third of a gateway's imports: it is loaded at the first inference.
_DRIVER = "agent.models.openai_model"


class Models:
    """Opens models by their settings."""

    def __init__(self, requests_limit: int = CONCURRENT_INFERENCES, telemetry: Telemetry | None = None) -> None:
        """Limit the concurrent requests to all of the models together."""
        self._telemetry = telemetry
        self._slots = _Slots(requests_limit)
        self._opened: dict[ModelSettings, _Endpoint] = {}

    def of(self, settings: ModelSettings) -> Model:
        """Return the model, not connected yet; Misconfigured if the environment has no key for it."""
        if settings not in self._opened:
            self._opened[settings] = _Endpoint(settings)
        model: Model = self._opened[settings]
        if self._telemetry is not None and self._telemetry.on:
            model = ObservedModel(model, self._telemetry, settings.resolved_base_url())
        return _LimitedModel(model, self._slots)

    async def close(self) -> None:
        """Close all connections."""
        for closed in await asyncio.gather(*(model.close() for model in self._opened.values()), return_exceptions=True):
            if isinstance(closed, Exception):  # the runs are settled, so a log line is enough
                log.warning("a model's connections did not close", error=str(closed))


class _Slots:
    """Limits the number of concurrent requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)

    @contextlib.asynccontextmanager
    async def one(self, on_wait: OnWait | None) -> AsyncIterator[None]:
        """Take a slot; report if it must be waited for."""
        reason = f"this tenant has as many inferences under way as it may (concurrent_inferences: {self._limit})"
        with on_wait(reason) if on_wait is not None and self._free.locked() else contextlib.nullcontext():
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()


class _LimitedModel:
    """A model whose requests need a slot."""

    def __init__(self, model: Model, slots: _Slots, on_wait: OnWait | None = None) -> None:
        self._model = model
        self._slots = slots
        self._on_wait = on_wait

    @property
    def name(self) -> str:
        return self._model.name

    def reporting(self, on_wait: OnWait) -> Model:
        return _LimitedModel(self._model, self._slots, on_wait)

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        async with self._slots.one(self._on_wait):
            return await self._model.infer(request, on_delta)


class _Endpoint:
    """A model whose client is created at its first request."""

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
