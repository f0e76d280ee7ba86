"""A model in the configuration: where it is, how it is asked, and what it costs."""

from __future__ import annotations

import os
from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section
from gateway.errors import Misconfigured

CONCURRENT_INFERENCES = 16
"""How many requests to models the runs of a tenant may have under way, where its settings do not say."""

MODEL_EXAMPLE = "`model: {name: gpt-5-mini}`"
_PRICES = frozenset({"input_usd_per_mtok", "output_usd_per_mtok"})
_OF_ONE_MODEL = _PRICES | {"context_window_tokens"}


class ModelSettings(Section):
    """An OpenAI-compatible endpoint.

    What is not set comes from the next level out (`within`): subagent, agent, tenant, gateway, and then OPENAI_BASE_URL
    and AIRLOCK_MODEL. Prices are US dollars for a million tokens; without them the money spent is not known.
    """

    name: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    stream: bool = True
    timeout_s: float = Field(
        default=120.0, gt=0, description="for the connection and, in a stream, between two pieces of an answer"
    )
    answer_timeout_s: float = Field(default=600.0, gt=0, description="for a whole answer, streamed or not")
    max_output_tokens: int | None = Field(default=None, ge=1, description="of one answer; unset is the endpoint's own")
    context_window_tokens: int | None = Field(default=None, ge=1000)
    input_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    output_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("input_usd_per_mtok and output_usd_per_mtok: set both prices or none")
        return self

    def within(self, outer: ModelSettings, field: str = "model") -> ModelSettings:
        """Return these settings with what they leave unset taken from `outer`; a null counts as set.

        Prices and the context window are those of one model at one endpoint, so another model does not inherit them.
        A key is sent to no endpoint that it was not named for: who sets another base_url names api_key_env beside it.
        Another api_key_env alone is another key for the same endpoint.
        `field` is where these settings stand; Misconfigured names it.
        """
        unset = type(self).model_fields.keys() - self.model_fields_set
        if len(unset & _PRICES) < len(_PRICES):
            unset -= _PRICES
        whole = self.model_copy(update={name: getattr(outer, name) for name in unset - _OF_ONE_MODEL})
        elsewhere = whole.resolved_base_url() != outer.resolved_base_url()
        if elsewhere and "api_key_env" in unset:
            raise Misconfigured(
                f"{field}.base_url: name api_key_env beside it, the variable with the key for this endpoint; "
                f"{outer.api_key_env} is the one for another, and is not sent here unless it is named here too"
            )
        if elsewhere or whole.resolved_name() != outer.resolved_name():
            return whole
        return whole.model_copy(update={name: getattr(outer, name) for name in unset & _OF_ONE_MODEL})

    @property
    def priced(self) -> bool:
        """Whether what it costs is known."""
        return self.input_usd_per_mtok is not None

    def resolved_name(self) -> str:
        """Return the model's name."""
        return self.name or os.environ.get("AIRLOCK_MODEL") or "gpt-5-mini"

    def resolved_base_url(self) -> str | None:
        """Return the endpoint, None for the package's own default."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL")

    def resolved_api_key(self, whose: str = "the model") -> str:
        """Return the key; Misconfigured, which says `whose` it is, when the environment has none."""
        key = os.environ.get(self.api_key_env)
        if not key:
            raise Misconfigured(
                f"no key for {whose}: set {self.api_key_env} in the gateway's environment, "
                "or name another variable under model.api_key_env"
            )
        return key
