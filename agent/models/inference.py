"""One inference: the request goes through the rings to the model, and the response gets our call ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.cancellation import Cancellation
from agent.coalescing import Coalescer
from agent.errors import ModelNonsense, ModelUnavailable
from agent.events import EventSink, emit
from agent.frozen import storable_text
from agent.hooks.engine import HookEngine
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.model import MeteredModel, Model, QueuedModel
from agent.state import ModelResponse
from agent.tools.intake import bounded


class Inference:
    """One inference of a step.

    `model_s`, `model_wait_s` (the wait in a queue), `rings_s` and `usage` are also set after a failure.
    """

    def __init__(
        self,
        hooks: HookEngine,
        model: Model,
        events: EventSink,
        clock: Callable[[], float],
        new_call_id: Callable[[], str],
    ) -> None:
        self.model_s = 0.0
        self.model_wait_s = 0.0
        self.rings_s = 0.0
        self._hooks = hooks
        self._model = MeteredModel(model.reporting(self._waiting) if isinstance(model, QueuedModel) else model)
        self._step = 0
        self._events = events
        self._clock = clock
        self._new_call_id = new_call_id
        self._answered = Usage()

    @property
    def usage(self) -> Usage:
        """The usage of all attempts, or the response's if that is more: a ring may ask another model."""
        return self._model.usage.at_least(self._answered)

    async def run(self, request: InferenceRequest, step: int, cancellation: Cancellation) -> ModelResponse:
        """Return the response. Raises ModelError, HookFailed of a ring, and whatever a driver raises."""
        self._step = step
        deltas = Coalescer(lambda text: emit(self._events, "model_delta", text=text))
        started_s = self._clock()
        first_asked_s: float | None = None

        async def center(asked: InferenceRequest) -> ModelResponse:
            nonlocal first_asked_s
            first_asked_s = self._clock() if first_asked_s is None else first_asked_s
            cancellation.heed()
            try:
                return await self._ask(asked, deltas)
            except Exception as error:  # also undocumented ones: the events must be complete
                deltas.flush()
                emit(self._events, "model_failed", step=step, error=str(error))
                raise
            finally:
                deltas.flush()
                # The wait between a ring's attempts counts as the model's time.
                self.model_s = self._clock() - first_asked_s - self.model_wait_s

        try:
            response = await self._hooks.around_inference(center, self._events)(request)
        finally:
            elapsed_s = self._clock() - started_s
            self.rings_s = max(0.0, elapsed_s - self.model_s - self.model_wait_s)
        self._answered = response.usage
        response = self._identified(response)
        message = response.message
        emit(
            self._events,
            "model_finished",
            step=step,
            text=message.content,
            tool_calls=[{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls],
            finish_reason=response.finish_reason,
            usage=response.usage.model_dump(),
            duration_ms=round((elapsed_s - self.model_wait_s) * 1000, 3),
        )
        return response

    @contextmanager
    def _waiting(self, reason: str) -> Iterator[None]:
        emit(self._events, "model_waiting", step=self._step, reason=reason)
        since_s = self._clock()
        try:
            yield
        finally:
            self.model_wait_s += self._clock() - since_s

    async def _ask(self, request: InferenceRequest, deltas: Coalescer) -> ModelResponse:
        cancellation = await Cancellation.watch()
        try:
            return await self._model.infer(request, deltas.add)
        except asyncio.CancelledError as error:
            if cancellation.asked:
                raise
            raise ModelUnavailable("something the model's driver waited for was cancelled") from error
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit and the like: the run must end properly
            raise ModelNonsense(f"the model's driver raised {type(error).__name__}: {error}") from error

    def _identified(self, response: ModelResponse) -> ModelResponse:
        """Give the tool calls ids of our own: an endpoint's may repeat and may contain anything.

        The texts become storable here; arguments only in the thread, because tools get them unchanged.
        """
        message = response.message
        changes: dict[str, object] = {}
        if message.tool_calls:
            changes["tool_calls"] = tuple(
                call.model_copy(
                    update={
                        "id": self._new_call_id(),
                        "name": storable_text(call.name),
                        "raw_arguments": storable_text(call.raw_arguments),
                    }
                )
                for call in map(bounded, message.tool_calls)
            )
        content = storable_text(message.content)
        if content is not message.content:
            changes["content"] = content
        return response.model_copy(update={"message": message.model_copy(update=changes)}) if changes else response
