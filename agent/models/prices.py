"""What a model's tokens cost."""

import math
from dataclasses import dataclass

from agent.messages import Usage


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars per million tokens.

    Input that came from the endpoint's prompt cache, and output that was reasoning, may have prices of their own;
    without one they cost what other input and output costs.
    """

    input_usd_per_mtok: float
    output_usd_per_mtok: float
    cached_input_usd_per_mtok: float | None = None
    reasoning_usd_per_mtok: float | None = None

    def __post_init__(self) -> None:
        for price in (self.input_usd_per_mtok, self.output_usd_per_mtok, self._cached, self._reasoning):
            if not 0 <= price < math.inf:
                raise ValueError(f"a price is a number of dollars, 0 or more, not {price}")

    @property
    def _cached(self) -> float:
        own = self.cached_input_usd_per_mtok
        return self.input_usd_per_mtok if own is None else own

    @property
    def _reasoning(self) -> float:
        own = self.reasoning_usd_per_mtok
        return self.output_usd_per_mtok if own is None else own

    def cost_usd(self, usage: Usage) -> float:
        input_tokens = usage.input_tokens - usage.cached_input_tokens
        output_tokens = usage.output_tokens - usage.reasoning_tokens
        input_usd = input_tokens * self.input_usd_per_mtok + usage.cached_input_tokens * self._cached
        output_usd = output_tokens * self.output_usd_per_mtok + usage.reasoning_tokens * self._reasoning
        return (input_usd + output_usd) / 1_000_000
