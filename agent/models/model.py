"""The model, whoever serves it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from agent.hooks.hook import InferenceRequest
from agent.state import ModelResponse

OnDelta = Callable[[str], None]

OnWait = Callable[[str], AbstractContextManager[None]]
"""Is entered when a request begins to wait for its turn, with what it waits for, and left when the wait is over."""


class Model(Protocol):
    """Asks a model once. Raises ModelError subclasses of agent.errors, each with one clear message."""

    @property
    def name(self) -> str: ...

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse: ...


@runtime_checkable
class QueuedModel(Model, Protocol):
    """A model whose requests may wait for their turn before they are sent."""

    def reporting(self, on_wait: OnWait) -> Model:
        """Return the same model; its requests report their waits."""
        ...
