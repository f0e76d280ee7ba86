"""The protocol of a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from agent.hooks.hook import InferenceRequest
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
