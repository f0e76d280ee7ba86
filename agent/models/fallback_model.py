"""Several models in order: the first one that is available answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agent.errors import ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.models.model import Model, OnDelta, Reports, reporting
from agent.state import ModelResponse

_REST_S = 30.0


class FallbackModel:
    """A Model that asks the next of several models where one is unavailable or overloaded.

    A model that failed is asked last for as long as its Retry-After says, else for 30 s. What a failed attempt cost,
    and which model is asked next, is reported. A refusal is no reason to ask another model.
    """

    def __init__(self, models: Sequence[Model], *, clock: Callable[[], float] = time.monotonic) -> None:
        if not models:
            raise ValueError("give at least one model")
        self._models = tuple(models)
        self._clock = clock
        self._rests_until_s: dict[int, float] = {}
        self._reports: Reports | None = None

    @property
    def name(self) -> str:
        return self._models[0].name

    def reporting(self, reports: Reports) -> FallbackModel:
        """Return the same models; which of them rest is shared."""
        same = FallbackModel(self._models, clock=self._clock)
        same._rests_until_s, same._reports = self._rests_until_s, reports
        return same

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Ask the models in turn. Raises the last one's ModelUnavailable, and any other ModelError at once."""
        order = self._order()
        for position, following in zip(order, (*order[1:], None), strict=True):
            model = self._models[position]
            try:
                return await reporting(model, self._reports).infer(request, on_delta)
            except ModelUnavailable as error:
                rest_s = _REST_S if error.retry_after_s is None else error.retry_after_s
                self._rests_until_s[position] = self._clock() + rest_s
                if following is None:
                    raise
                if self._reports is not None:
                    self._reports.failed(model.name, error, self._models[following].name)
        raise AssertionError("there is at least one model")

    def _order(self) -> list[int]:
        now_s = self._clock()
        return sorted(range(len(self._models)), key=lambda position: self._rests_until_s.get(position, 0.0) > now_s)
