"""One inference of a step: through the rings to the model, with its events and its times."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.cancellation import Cancellation
from agent.coalescer import Coalescer
from agent.errors import ModelError, ModelNonsense, ModelUnavailable
from agent.events import EventSink, emit
from agent.frozen import storable_text
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Failover, InferenceRequest, Progress, Retry
from agent.messages import Usage
from agent.models.metered_model import MeteredModel
from agent.models.model import Model
from agent.state import ModelResponse
from agent.tools.intake import bounded

# Of the name of the model that answered, which a driver may take from its endpoint.
_MODEL_CHARS = 200
# Of the order of text and reasoning, in the events of one answer.
_CHANGES_LIMIT = 1_000


class _Deltas:
    """Emits the pieces of an attempt, of its text and of its reasoning, in the order in which they arrive.

    An answer that changes between the two all the time would make an event of each character: in the end only time
    separates its pieces.
    """

    def __init__(self, events: EventSink) -> None:
        self.reasoning_chars = 0
        self._changes_left = _CHANGES_LIMIT
        self._text = Coalescer(lambda text: emit(events, "model_delta", text=text))
        self._reasoning = Coalescer(lambda text: emit(events, "reasoning_delta", text=text))

    def add(self, text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        if reasoning:
            self.reasoning_chars += len(text)
        now, before = (self._reasoning, self._text) if reasoning else (self._text, self._reasoning)
        if shown and text:
            if before.waits and self._changes_left:
                self._changes_left -= 1
                before.flush()
            now.add(text)

    def flush(self) -> None:
        self._reasoning.flush()
        self._text.flush()


@dataclass
class Inference:
    """One inference of a step: through the rings to the model, and the response gets our call ids.

    `model_s`, `model_wait_s` (the wait in a queue), `rings_s` and `usage` are also set after a failure. `first_token_s`
    is the time from sending the last attempt to its first text.
    """

    hooks: HookEngine
    model: Model
    events: EventSink
    clock: Callable[[], float]
    new_call_id: Callable[[], str]
    step: int
    model_s: float = 0.0
    model_wait_s: float = 0.0
    rings_s: float = 0.0
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        self._model = MeteredModel(self.model)
        self._deltas = _Deltas(self.events)
        self._answered = Usage()
        self._sent_s = 0.0

    @property
    def usage(self) -> Usage:
        """The usage of all attempts, or the response's if that is more: a ring may ask another model."""
        return self._model.usage.at_least(self._answered)

    async def run(self, request: InferenceRequest, cancellation: Cancellation) -> ModelResponse:
        """Return the response. Raises ModelError, HookFailed of a ring, and whatever a driver raises."""
        started_s = self.clock()
        first_asked_s: float | None = None

        async def center(asked: InferenceRequest) -> ModelResponse:
            nonlocal first_asked_s
            first_asked_s = self.clock() if first_asked_s is None else first_asked_s
            cancellation.heed()
            try:
                return await self._ask(asked)
            except Exception as error:  # also undocumented ones: the events must be complete
                model = error.model if isinstance(error, ModelError) else ""
                self._failed(Failover(model or self._model.name, error, ""))
                raise
            finally:
                self._deltas.flush()
                # The wait between a ring's attempts counts as the model's time.
                self.model_s = self.clock() - first_asked_s - self.model_wait_s

        try:
            progress = Progress(self._waiting, self._retrying, self._failed)
            response = await self.hooks.around_inference(center, self.events)(replace(request, progress=progress))
        finally:
            elapsed_s = self.clock() - started_s
            self.rings_s = max(0.0, elapsed_s - self.model_s - self.model_wait_s)
        self._answered = response.usage
        response = self._identified(response)
        message = response.message
        emit(
            self.events,
            "model_finished",
            step=self.step,
            text=message.content,
            tool_calls=[{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls],
            finish_reason=response.finish_reason,
            reasoning_chars=self._deltas.reasoning_chars,
            usage=response.usage.model_dump(),
            duration_ms=round((elapsed_s - self.model_wait_s) * 1000, 3),
            model=response.model or self._model.name,
            first_token_ms=None if self.first_token_s is None else round(self.first_token_s * 1000, 3),
        )
        return response

    def _sent(self) -> None:
        """Count from here what belongs to one attempt of one model."""
        self.first_token_s, self._sent_s = None, self.clock() - self.model_wait_s
        self._deltas.reasoning_chars = 0

    def _failed(self, failover: Failover) -> None:
        self._deltas.flush()
        emit(
            self.events,
            "model_failed",
            step=self.step,
            error=str(failover.error),
            model=failover.model,
            usage=self._model.last.model_dump(),
            next_model=failover.next_model,
        )
        self._sent()  # if another model is asked

    def _retrying(self, retry: Retry) -> None:
        wait_s = round(retry.wait_s, 3)
        emit(
            self.events,
            "model_retrying",
            step=self.step,
            attempt=retry.attempt,
            attempts=retry.attempts,
            wait_s=wait_s,
        )

    @contextmanager
    def _waiting(self, reason: str) -> Iterator[None]:
        emit(self.events, "model_waiting", step=self.step, reason=reason)
        since_s = self.clock()
        try:
            yield
        finally:
            self.model_wait_s += self.clock() - since_s

    async def _ask(self, request: InferenceRequest) -> ModelResponse:
        cancellation = await Cancellation.watch()
        self._sent()

        def add(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
            if text and self.first_token_s is None:
                self.first_token_s = self.clock() - self.model_wait_s - self._sent_s
            self._deltas.add(text, reasoning=reasoning, shown=shown)

        try:
            return await self._model.infer(request, add)
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
        calls = []
        for call in map(bounded, response.message.tool_calls):
            name, raw = storable_text(call.name), storable_text(call.raw_arguments)
            calls.append(call.with_(id=self.new_call_id(), name=name, raw_arguments=raw))
        content, model = storable_text(response.message.content), storable_text(response.model[:_MODEL_CHARS])
        return response.with_(message=response.message.with_(content=content, tool_calls=tuple(calls)), model=model)
