"""A model in the configuration: its endpoint, its request settings and its prices."""

from __future__ import annotations

import os
from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section
from gateway.errors import Misconfigured

CONCURRENT_INFERENCES = 16
"""The default of TenantSettings.concurrent_inferences."""

MODEL_EXAMPLE = "`model: {name: gpt-5-mini}`"
_PRICES = frozenset({"input_usd_per_mtok", "output_usd_per_mtok"})
_OF_ONE_MODEL = _PRICES | {"context_window_tokens"}


class ModelSettings(Section):
    """An OpenAI-compatible endpoint.

    Unset fields come from the next level out (`within`): subagent, agent, tenant, gateway, then OPENAI_BASE_URL and
    AIRLOCK_MODEL. Prices are US dollars per million tokens; without them the cost is unknown.
    """

    name: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    stream: bool = True
    timeout_s: float = Field(
        default=120.0, gt=0, description="for connecting and, in a stream, between two pieces of an answer"
    )
    answer_timeout_s: float = Field(default=600.0, gt=0, description="for a whole answer, streamed or not")
    max_output_tokens: int | None = Field(default=None, ge=1, description="per answer; unset means the endpoint's own")
    context_window_tokens: int | None = Field(default=None, ge=1000)
    input_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    output_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("input_usd_per_mtok and output_usd_per_mtok: set both prices or neither")
        return self

    def within(self, outer: ModelSettings, field: str = "model") -> ModelSettings:
        """Return these settings with unset fields taken from `outer`; null counts as set.

        Prices and the context window belong to one model at one endpoint, so another model does not inherit them.
        A key is sent only to the endpoint that it was configured for: settings with another base_url need their own
        api_key_env. Another api_key_env alone is another key for the same endpoint.
        Misconfigured names `field`, the place of these settings.
        """
        unset = type(self).model_fields.keys() - self.model_fields_set
        if len(unset & _PRICES) < len(_PRICES):
            unset -= _PRICES
        whole = self.model_copy(update={name: getattr(outer, name) for name in unset - _OF_ONE_MODEL})
        elsewhere = whole.resolved_base_url() != outer.resolved_base_url()
        if elsewhere and "api_key_env" in unset:
            raise Misconfigured(
                f"{field}.base_url: set api_key_env beside it, the variable with the key for this endpoint; "
                f"{outer.api_key_env} belongs to another endpoint and is not sent here unless it is set here too"
            )
        if elsewhere or whole.resolved_name() != outer.resolved_name():
            return whole
        return whole.model_copy(update={name: getattr(outer, name) for name in unset & _OF_ONE_MODEL})

    @property
    def priced(self) -> bool:
        return self.input_usd_per_mtok is not None

    def resolved_name(self) -> str:
        return self.name or os.environ.get("AIRLOCK_MODEL") or "gpt-5-mini"

    def resolved_base_url(self) -> str | None:
        """Return the endpoint; None for the openai package's default."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL")

    def resolved_api_key(self, whose: str = "the model") -> str:
        """Return the key; Misconfigured if the environment lacks it, naming `whose` key it is."""
        key = os.environ.get(self.api_key_env)
        if not key:
            raise Misconfigured(
                f"no key for {whose}: set {self.api_key_env} in the gateway's environment, "
                "or set another variable in model.api_key_env"
            )
        return key
