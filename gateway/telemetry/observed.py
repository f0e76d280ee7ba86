"""Observes models and sandboxes.

No trace continues inside a sandbox: the gateway measures the time between request and answer.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind

from agent.hooks.hook import InferenceRequest
from agent.models.model import Model, OnDelta
from agent.state import ModelResponse
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry
from sandbox.engines.engine import Creator
from sandbox.keeper.keeper import Leases
from sandbox.sandbox import Sandbox, SandboxSpec

# The wire's dialect; the actual provider behind the endpoint is unknown.
_PROVIDER = "openai"
_FINISH_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call", "refusal"})
_Leased = TypeVar("_Leased", bound=Sandbox | None)


class ObservedModel:
    """A model decorator: a span, a duration and the tokens of each inference."""

    def __init__(self, model: Model, telemetry: Telemetry, base_url: str | None = None) -> None:
        self._model = model
        self._telemetry = telemetry
        self._labels = {a.OPERATION: "chat", a.PROVIDER: _PROVIDER, a.REQUEST_MODEL: model.name}
        self._server: dict[str, str | int] = {}
        parts = urlsplit(base_url or "https://api.openai.com")
        if parts.hostname:
            self._server[a.SERVER_ADDRESS] = parts.hostname
            self._server[a.SERVER_PORT] = parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def name(self) -> str:
        return self._model.name

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        telemetry, span_of = self._telemetry, {**self._labels, **self._server}
        metric, name = "gen_ai.client.operation.duration", f"chat {self.name}"
        with telemetry.timed(metric, self._labels, name, span_of, SpanKind.CLIENT) as span:
            response = await self._model.infer(request, on_delta)
            reason = response.finish_reason
            span.set_attributes(
                {
                    a.FINISH_REASONS: (reason if reason in _FINISH_REASONS else "other",),
                    a.INPUT_TOKENS: response.usage.input_tokens,
                    a.OUTPUT_TOKENS: response.usage.output_tokens,
                }
            )
        for token_type, tokens in (("input", response.usage.input_tokens), ("output", response.usage.output_tokens)):
            telemetry.instruments.add("gen_ai.client.token.usage", tokens, {**self._labels, a.TOKEN_TYPE: token_type})
        return response


@dataclass(frozen=True)
class ObservedCreation:
    """Satisfies Creator; each creation has a span, and its time is recorded."""

    inner: Creator
    telemetry: Telemetry

    async def create(self, spec: SandboxSpec) -> Sandbox:
        with self.telemetry.timed("airlock.sandbox.start.duration", {}, "create_sandbox", {}) as span:
            sandbox = await self.inner.create(spec)
            span.set_attribute(a.SANDBOX_ID, sandbox.id)
            return sandbox


@dataclass(frozen=True)
class ObservedLeases:
    """Satisfies Leases; each lease has a span, and the time to acquire it is recorded."""

    inner: Leases
    telemetry: Telemetry

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._observed(self.inner.acquire(spec))

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self._observed(self.inner.acquire_existing(spec))

    @asynccontextmanager
    async def _observed(self, lease: AbstractAsyncContextManager[_Leased]) -> AsyncIterator[_Leased]:
        telemetry = self.telemetry
        started_s = telemetry.clock()
        with telemetry.within("use_sandbox", {}, SpanKind.CLIENT) as span:
            async with lease as sandbox:
                acquire_s = telemetry.clock() - started_s
                telemetry.instruments.add("airlock.sandbox.acquire.duration", acquire_s)
                if sandbox is not None and span.is_recording():
                    span.set_attributes({a.SANDBOX_ID: sandbox.id, a.ACQUIRE_S: round(acquire_s, 6)})
                yield sandbox
