"""The protocol of a model, and how the pieces of an answer arrive."""

from typing import NamedTuple, Protocol

from agent.hooks.hook import InferenceRequest
from agent.state import ModelResponse


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
