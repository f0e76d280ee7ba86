"""The models of one tenant: equal settings share a client, and the number of concurrent requests is limited.

Requests run in the order in which they arrive. Waiting is reported, and does not count as the model's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from agent.hooks.hook import InferenceRequest
from agent.models.fallback_model import FallbackModel
from agent.models.model import Model, OnDelta
from agent.state import ModelResponse
from gateway.agents.charged_model import ChargedModel, Charges
from gateway.config.model_settings import CONCURRENT_INFERENCES, ModelSettings, OneModelSettings
from gateway.telemetry.observed import ObservedModel
from gateway.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from agent.models.openai_model import OpenAIModel

log = structlog.get_logger(__name__)
# The client library is a third of a gateway's imports: it is loaded at the first inference.
_DRIVER = "agent.models.openai_model"


class ModelSlots:
    """How many requests each model takes at once, of all tenants of this process."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str | None, str], asyncio.Semaphore] = {}

    def of(self, settings: OneModelSettings) -> asyncio.Semaphore | None:
        """Return the slots of a model with a limit; the first tenant's limit holds until the gateway restarts."""
        if settings.concurrent_requests is None:
            return None
        named = (settings.resolved_base_url(), settings.resolved_name())
        return self._slots.setdefault(named, asyncio.Semaphore(settings.concurrent_requests))


class Models:
    """Opens models by their settings."""

    def __init__(
        self,
        requests_limit: int = CONCURRENT_INFERENCES,
        telemetry: Telemetry | None = None,
        slots: ModelSlots | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._of_tenant = _Slots(
            asyncio.Semaphore(requests_limit),
            f"this tenant has as many inferences under way as it may (concurrent_inferences: {requests_limit})",
        )
        self._slots = slots or ModelSlots()
        self._opened: dict[str, _Endpoint] = {}
        self._rests: dict[str, dict[int, float]] = {}

    def of(self, settings: ModelSettings, charges: Charges | None = None) -> Model:
        """Return the model, with its fallbacks, not connected yet; Misconfigured if the environment has no key for it.

        Its requests are charged to the `charges` of a run from when it is their turn.
        """
        models = [self._one(one, charges) for one in settings.in_order()]
        if len(models) == 1:
            return models[0]
        return FallbackModel(models, rests_until_s=self._rests.setdefault(settings.model_dump_json(), {}))

    def _one(self, settings: OneModelSettings, charges: Charges | None) -> Model:
        same = settings.model_dump_json(exclude={"fallbacks"})
        if same not in self._opened:
            self._opened[same] = _Endpoint(settings)
        model: Model = self._opened[same]
        if self._telemetry is not None and self._telemetry.on:
            model = ObservedModel(model, self._telemetry, settings.resolved_base_url())
        if charges is not None:
            model = ChargedModel(model, charges, settings.prices())
        of_model = self._slots.of(settings)
        if of_model is not None:
            limit = f"concurrent_requests: {settings.concurrent_requests}"
            reason = f"the model has as many requests under way as it takes ({limit})"
            return _LimitedModel(model, (self._of_tenant, _Slots(of_model, reason)))
        return _LimitedModel(model, (self._of_tenant,))

    async def close(self) -> None:
        for closed in await asyncio.gather(*(model.close() for model in self._opened.values()), return_exceptions=True):
            if isinstance(closed, Exception):  # the runs are settled, so a log line is enough
                log.warning("a model's connections did not close", error=str(closed))


@dataclass(frozen=True)
class _Slots:
    """A limit on requests; `reason` is why one waits."""

    slots: asyncio.Semaphore
    reason: str


@dataclass(frozen=True)
class _LimitedModel:
    """A model whose requests take a slot of each limit in turn: the tenant's first, so that it holds up no other."""

    model: Model
    limits: tuple[_Slots, ...]

    @property
    def name(self) -> str:
        return self.model.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        async with contextlib.AsyncExitStack() as held:
            for limit in self.limits:
                with request.progress.waiting(limit.reason) if limit.slots.locked() else contextlib.nullcontext():
                    await limit.slots.acquire()
                held.callback(limit.slots.release)
            return await self.model.infer(request, on_delta)


class _Endpoint:
    """A model whose client is created at its first request."""

    def __init__(self, settings: OneModelSettings) -> None:
        self._settings = settings
        self._api_key = settings.resolved_api_key()
        self._connection = settings.connection()
        self._opened: OpenAIModel | None = None

    @property
    def name(self) -> str:
        return self._settings.resolved_name()

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        if _DRIVER not in sys.modules:
            await asyncio.to_thread(importlib.import_module, _DRIVER)
        self._opened = self._opened or self._open()
        return await self._opened.infer(request, on_delta if self._settings.store_reasoning else _hiding(on_delta))

    def _open(self) -> OpenAIModel:
        from agent.models.openai_model import OpenAIModel  # noqa: PLC0415 - see _DRIVER

        asked = self._settings
        return OpenAIModel(
            asked.resolved_name(),
            base_url=asked.resolved_base_url(),
            api_key=self._api_key,
            stream=asked.stream,
            settings=asked.request_settings(),
            connection=self._connection,
            prices=asked.prices(),
        )

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def _hiding(on_delta: OnDelta) -> OnDelta:
    """Pass pieces on with those of the reasoning hidden: they are counted, and no event has them."""

    def take(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        on_delta(text, reasoning=reasoning, shown=shown and not reasoning)

    return take
