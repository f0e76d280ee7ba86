"""A model whose every request is charged to the run that makes it: answered, failed, cancelled or lost.

under way     the estimate is on record before the request is sent: it is what a gateway that dies leaves to charge
answered      what the endpoint reports, or its estimate (agent.models.reported_usage)
failed        what its error says; without that, an estimate of what was sent and received, if text had arrived
cancelled     such an estimate in any case: the endpoint may have read the request
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.metered_model import charge_failure, charged
from agent.models.model import Model, OnDelta
from agent.models.prices import Prices
from agent.models.token_estimates import lost_usage, request_tokens
from agent.state import ModelResponse

_REPORTED_CHARS = 1024
"""A growing answer is reported each time that it has grown by so much."""


class Attempt(Protocol):
    """A request under way."""

    def grew(self, estimate: Usage) -> None:
        """Replace the estimate, because some of the answer has arrived."""

    def end(self, usage: Usage, first_token_s: float | None) -> None:
        """Charge the request. It took `first_token_s` to the first text, None if there was none."""


class Charges(Protocol):
    """What a run is charged."""

    async def begin(self, agent: str, model: str, estimate: Usage) -> Attempt:
        """Return once the request is on record as under way; an empty `agent` is the run's own. Raises ModelError."""
        ...


@dataclass(frozen=True)
class ChargedModel:
    """A model decorator; `prices` are what estimates cost."""

    model: Model
    charges: Charges
    prices: Prices | None
    clock: Callable[[], float] = time.monotonic

    @property
    def name(self) -> str:
        return self.model.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        sent_tokens = request_tokens(request)
        attempt = await self.charges.begin(request.agent, self.name, self._lost(sent_tokens, 0))
        begun_s, first_token_s, received_chars, reported_chars = self.clock(), None, 0, 0

        def received(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
            nonlocal first_token_s, received_chars, reported_chars
            if text and first_token_s is None:
                first_token_s = self.clock() - begun_s
            received_chars += len(text)
            if received_chars >= reported_chars + _REPORTED_CHARS:
                reported_chars = received_chars
                attempt.grew(self._lost(sent_tokens, received_chars))
            on_delta(text, reasoning=reasoning, shown=shown)

        usage = Usage()
        try:
            response = await self.model.infer(request, received)
            usage = response.usage
        except BaseException as error:
            usage = charged(error) or usage
            if charged(error) is None and (received_chars or isinstance(error, asyncio.CancelledError)):
                usage = self._lost(sent_tokens, received_chars)
                charge_failure(error, usage)
            raise
        finally:
            attempt.end(usage, first_token_s)
        return response

    def _lost(self, sent_tokens: int, received_chars: int) -> Usage:
        usage = lost_usage(sent_tokens, received_chars)
        return usage if self.prices is None else usage.with_(cost_usd=self.prices.cost_usd(usage))
