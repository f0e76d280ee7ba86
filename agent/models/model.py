"""The protocol of a model, and a model that counts the usage of every attempt."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from agent.errors import ModelError
from agent.hooks.hook import InferenceRequest
from agent.messages import Usage
from agent.models.token_estimate import CHARS_PER_TOKEN, messages_tokens, prompt_tokens
from agent.state import ModelResponse

OnDelta = Callable[[str], None]

OnWait = Callable[[str], AbstractContextManager[None]]
"""A context for the time that a request waits in a queue; the argument says what for."""


class Model(Protocol):
    """Sends one request. Raises the ModelError subclasses of agent.errors."""

    @property
    def name(self) -> str: ...

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse: ...


@runtime_checkable
class QueuedModel(Model, Protocol):
    """A model whose requests may wait in a queue before they are sent."""

    def reporting(self, on_wait: OnWait) -> Model:
        """Return the same model, reporting the waits of its requests."""
        ...


class MeteredModel:
    """Sums up the `usage` of all attempts of another model.

    A failed attempt counts as its error says; without that, its usage is estimated from the text received so far.
    """

    def __init__(self, inner: Model) -> None:
        self.usage = Usage()
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        received_chars = 0

        def received(text: str) -> None:
            nonlocal received_chars
            received_chars += len(text)
            on_delta(text)

        try:
            response = await self._inner.infer(request, received)
        except BaseException as error:
            usage = error.usage if isinstance(error, ModelError) else None
            if usage is None and received_chars:
                sent = messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)
                usage = Usage(input_tokens=sent, output_tokens=-(-received_chars // CHARS_PER_TOKEN))
            self.usage += usage or Usage()
            raise
        if isinstance(response, ModelResponse):  # else the loop reports the wrong type
            self.usage += response.usage
        return response
