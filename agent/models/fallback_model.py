"""Several models in order: the first one that is available answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agent.errors import ModelError, ModelUnavailable
from agent.hooks.hook import Failover, InferenceRequest
from agent.models.model import Model, OnDelta
from agent.state import ModelResponse

_REST_S = 30.0


class FallbackModel:
    """A Model that asks the next of several models where one is unavailable or overloaded.

    A model that failed is asked last for as long as its Retry-After says, else for 30 s. Each failure is reported
    (Progress.failing_over). A refusal is no reason to ask another model.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        rests_until_s: dict[int, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask the models in this order; several objects for the same models can share `rests_until_s`."""
        if not models:
            raise ValueError("give at least one model")
        self._models = tuple(models)
        self._rests_until_s = {} if rests_until_s is None else rests_until_s
        self._clock = clock

    @property
    def name(self) -> str:
        return self._models[0].name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        """Ask the models in turn. Raises the last one's ModelUnavailable, and any other ModelError at once."""
        now_s = self._clock()
        order = sorted(range(len(self._models)), key=lambda position: self._rests_until_s.get(position, 0.0) > now_s)
        asked_s: list[float | None] = []
        for position, following in zip(order, (*order[1:], None), strict=True):
            model = self._models[position]
            try:
                return await model.infer(request, on_delta)
            except ModelError as error:
                error.model = model.name
                if not isinstance(error, ModelUnavailable):
                    raise
                rest_s = _REST_S if error.retry_after_s is None else error.retry_after_s
                self._rests_until_s[position] = self._clock() + rest_s
                asked_s.append(error.retry_after_s)
                if following is None:
                    known_s = [one for one in asked_s if one is not None]
                    # Any of them may be asked again, so the one that asks for the shortest wait counts.
                    error.retry_after_s = min(known_s) if len(known_s) == len(asked_s) else None
                    raise
                request.progress.failing_over(Failover(model.name, error, self._models[following].name))
        raise AssertionError("there is at least one model")
