"""The model, whoever serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.hook import InferenceRequest
from agent.state import ModelResponse

OnDelta = Callable[[str], None]


class Model(Protocol):
    """Asks a model once. Raises ModelError subclasses of agent.errors, each with one clear message."""

    @property
    def name(self) -> str: ...

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse: ...
