"""The protocol of a model, its tokens estimated, one that counts the usage of every attempt, and one inference."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from agent.cancellation import Cancellation
from agent.coalescer import Coalescer
from agent.errors import ModelError, ModelNonsense, ModelUnavailable
from agent.events import EventSink, emit
from agent.frozen import storable_text
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Failover, InferenceRequest, Progress, Retry
from agent.messages import Message, ToolSpec, Usage
from agent.state import ModelResponse
from agent.tools.intake import bounded

CHARS_PER_TOKEN = 4
# Endpoints scale images down, and count a page of a PDF as its text and an image.
_IMAGE_TOKENS = 1_000
_PDF_BYTES_PER_TOKEN = 32
_PDF_TOKENS_LIMIT = 50_000
# Of the name of the model that answered, which an endpoint chooses.
_MODEL_CHARS = 200
# Of the order of text and reasoning, in the events of one answer.
_CHANGES_LIMIT = 1_000


class OnDelta(Protocol):
    """Takes pieces of an answer as they arrive."""

    def __call__(self, text: str, *, reasoning: bool = False, shown: bool = True) -> None:
        """Take a piece of the text, or of the `reasoning`; a piece that is not `shown` is only counted."""


def no_deltas(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
    """Drop the pieces: the answer has them all."""


class Arrived(NamedTuple):
    """What a piece of an answer brought."""

    text: str = ""
    reasoning: str = ""

    def deliver(self, on_delta: OnDelta) -> None:
        if self.reasoning:
            on_delta(self.reasoning, reasoning=True)
        if self.text:
            on_delta(self.text)


class Model(Protocol):
    """Sends one request. Raises the ModelError subclasses of agent.errors."""

    @property
    def name(self) -> str: ...

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse: ...


def message_tokens(message: Message) -> int:
    """Return the estimate for a message: its content, its tool calls, its attachments, and reasoning that is kept."""
    calls = sum(len(call.name) + len(json.dumps(call.arguments or {})) for call in message.tool_calls)
    kept = len(json.dumps(message.provider_data.data)) if message.provider_data is not None else 0
    shown = sum(file_tokens(one.media_type, one.size_bytes) for one in message.attachments)
    return -(-(len(message.content) + calls + kept) // CHARS_PER_TOKEN) + shown


def file_tokens(media_type: str, size_bytes: int) -> int:
    """Return the estimate for a file that is shown: images cost about the same, a PDF as much as there is in it."""
    if media_type.startswith("image/"):
        return _IMAGE_TOKENS
    return min(max(size_bytes // _PDF_BYTES_PER_TOKEN, _IMAGE_TOKENS), _PDF_TOKENS_LIMIT)


def messages_tokens(messages: Iterable[Message]) -> int:
    """Return the estimate for messages."""
    return sum(message_tokens(message) for message in messages)


def request_tokens(request: InferenceRequest) -> int:
    """Return the estimate for all that is sent."""
    return messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)


def prompt_tokens(system_prompt: str, tools: Iterable[ToolSpec]) -> int:
    """Return the estimate for what is sent besides the messages."""
    chars = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in tools)
    return -(-(len(system_prompt) + chars) // CHARS_PER_TOKEN)


class MeteredModel:
    """Sums up the `usage` of all attempts of another model; `last` is that of the last one.

    A failed attempt counts as its error says (charge_failure); without that, its usage is estimated from the text
    received so far.
    """

    def __init__(self, inner: Model) -> None:
        self.name = inner.name
        self.usage = self.last = Usage()
        self._inner = inner

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        received_chars = 0

        def received(text: str, *, reasoning: bool = False, shown: bool = True) -> None:
            nonlocal received_chars
            received_chars += len(text)
            on_delta(text, reasoning=reasoning, shown=shown)

        def charge(error: BaseException) -> None:
            nonlocal received_chars
            self.last = charged(error) or (lost_usage(request, received_chars) if received_chars else Usage())
            self.usage += self.last
            received_chars = 0

        def failed_over(failover: Failover) -> None:
            charge(failover.error)
            request.progress.failing_over(failover)

        self.last = Usage()
        try:
            progress = replace(request.progress, failing_over=failed_over)
            response = await self._inner.infer(replace(request, progress=progress), received)
        except BaseException as error:
            charge(error)
            raise
        if isinstance(response, ModelResponse):  # else the loop reports the wrong type
            self.last = response.usage
            self.usage += self.last
        return response


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


def lost_usage(request: InferenceRequest, received_chars: int) -> Usage:
    """Return the estimate for an attempt whose end is not known."""
    sent = request_tokens(request)
    return Usage(input_tokens=sent, estimated_tokens=sent) + received_usage(received_chars)


def received_usage(received_chars: int) -> Usage:
    """Return the estimate for what has arrived of an answer."""
    tokens = -(-received_chars // CHARS_PER_TOKEN)
    return Usage(output_tokens=tokens, estimated_tokens=tokens)


def charge_failure(error: BaseException, usage: Usage) -> None:
    """Say what a failed attempt cost, of any error: also of a cancellation."""
    vars(error)["usage"] = usage


def charged(error: BaseException) -> Usage | None:
    """Return what an error says that the attempt cost, None if it does not."""
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else None


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
