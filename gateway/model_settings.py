"""A model in the configuration: where it is, how it is asked, and what it costs."""

from __future__ import annotations

import os
from typing import Self

from pydantic import Field, model_validator

from gateway.config_section import Section
from gateway.errors import Misconfigured


class ModelSettings(Section):
    """An OpenAI-compatible endpoint. What is not set comes from OPENAI_BASE_URL and AIRLOCK_MODEL.

    Prices are US dollars for a million tokens; without them the money spent is not known.
    """

    name: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    stream: bool = True
    timeout_s: float = Field(default=120.0, gt=0)
    max_output_tokens: int | None = Field(default=None, ge=1, description="of one answer; unset is the endpoint's own")
    context_window_tokens: int | None = Field(default=None, ge=1000)
    input_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    output_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("input_usd_per_mtok and output_usd_per_mtok: set both prices or none")
        return self

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

    def resolved_api_key(self) -> str:
        """Return the key; Misconfigured when the environment has none."""
        key = os.environ.get(self.api_key_env)
        if not key:
            raise Misconfigured(
                f"no key for the model: set {self.api_key_env} in the gateway's environment, "
                "or name another variable under model.api_key_env"
            )
        return key
