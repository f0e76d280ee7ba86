"""The models of one run: equal settings share a client, and all of them are closed when the run is over."""

from __future__ import annotations

import asyncio

import structlog

from agent.models.openai_model import OpenAIModel, Prices
from gateway.model_settings import ModelSettings

log = structlog.get_logger(__name__)


class Models:
    """Opens models by their settings."""

    def __init__(self) -> None:
        self._opened: dict[ModelSettings, OpenAIModel] = {}

    def of(self, settings: ModelSettings) -> OpenAIModel:
        """Return the model; nothing is connected yet. Raises Misconfigured when the environment has no key for it."""
        if settings not in self._opened:
            self._opened[settings] = _opened(settings)
        return self._opened[settings]

    async def close(self) -> None:
        """Close the connections of all of them."""
        for closed in await asyncio.gather(*(model.close() for model in self._opened.values()), return_exceptions=True):
            if isinstance(closed, Exception):  # nobody is left to act on it, and the run is settled all the same
                log.warning("a model's connections did not close", error=str(closed))


def _opened(settings: ModelSettings) -> OpenAIModel:
    prices = None
    if settings.input_usd_per_mtok is not None and settings.output_usd_per_mtok is not None:
        prices = Prices(settings.input_usd_per_mtok, settings.output_usd_per_mtok)
    return OpenAIModel(
        settings.resolved_name(),
        base_url=settings.resolved_base_url(),
        api_key=settings.resolved_api_key(),
        stream=settings.stream,
        timeout_s=settings.timeout_s,
        max_output_tokens=settings.max_output_tokens,
        prices=prices,
    )
