"""The models of one tenant: equal settings share a client, and the number of concurrent requests is limited.

Requests run in the order in which they arrive. Waiting is reported, and does not count as the model's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from dataclasses import dataclass, replace
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
        self._telemetry = telemetry
        self._requests_limit = requests_limit
        self._slots = asyncio.Semaphore(requests_limit)
        self._opened: dict[ModelSettings, _Endpoint] = {}

    def of(self, settings: ModelSettings) -> Model:
        """Return the model, not connected yet; Misconfigured if the environment has no key for it."""
        if settings not in self._opened:
            self._opened[settings] = _Endpoint(settings)
        model: Model = self._opened[settings]
        if self._telemetry is not None and self._telemetry.on:
            model = ObservedModel(model, self._telemetry, settings.resolved_base_url())
        return _LimitedModel(model, self._slots, self._requests_limit)

    async def close(self) -> None:
        for closed in await asyncio.gather(*(model.close() for model in self._opened.values()), return_exceptions=True):
            if isinstance(closed, Exception):  # the runs are settled, so a log line is enough
                log.warning("a model's connections did not close", error=str(closed))


@dataclass(frozen=True)
class _LimitedModel:
    model: Model
    slots: asyncio.Semaphore
    limit: int
    on_wait: OnWait | None = None

    @property
    def name(self) -> str:
        return self.model.name

    def reporting(self, on_wait: OnWait) -> Model:
        return replace(self, on_wait=on_wait)

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        reason = f"this tenant has as many inferences under way as it may (concurrent_inferences: {self.limit})"
        with self.on_wait(reason) if self.on_wait and self.slots.locked() else contextlib.nullcontext():
            await self.slots.acquire()
        try:
            return await self.model.infer(request, on_delta)
        finally:
            self.slots.release()


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
        self._opened = self._opened or self._open()
        return await self._opened.infer(request, on_delta)

    def _open(self) -> OpenAIModel:
        from agent.models.openai_model import OpenAIModel, Prices  # noqa: PLC0415 - see _DRIVER

        asked, prices = self._settings, None
        if asked.input_usd_per_mtok is not None and asked.output_usd_per_mtok is not None:
            prices = Prices(asked.input_usd_per_mtok, asked.output_usd_per_mtok)
        same = asked.model_dump(include={"stream", "timeout_s", "answer_timeout_s", "max_output_tokens"})
        base_url = asked.resolved_base_url()
        return OpenAIModel(asked.resolved_name(), base_url=base_url, api_key=self._api_key, prices=prices, **same)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
