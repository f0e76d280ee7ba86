"""Observes models: a span, a duration and the tokens of each inference."""

from __future__ import annotations

from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind

from agent.hooks.hook import InferenceRequest
from agent.models.model import Model, OnDelta
from agent.state import ModelResponse
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry

# The wire's dialect; the actual provider behind the endpoint is unknown.
_PROVIDER = "openai"
_FINISH_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call", "refusal"})


class ObservedModel:
    """A model decorator."""

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
        telemetry = self._telemetry
        started_s = telemetry.clock()
        kind: str | None = None
        try:
            with telemetry.within(f"chat {self.name}", {**self._labels, **self._server}, SpanKind.CLIENT) as span:
                response = await self._model.infer(request, on_delta)
                reason = response.finish_reason
                span.set_attributes(
                    {
                        a.FINISH_REASONS: (reason if reason in _FINISH_REASONS else "other",),
                        a.INPUT_TOKENS: response.usage.input_tokens,
                        a.OUTPUT_TOKENS: response.usage.output_tokens,
                    }
                )
        except BaseException as error:
            kind = type(error).__name__
            raise
        finally:
            labels = {**self._labels, a.ERROR_TYPE: kind}
            telemetry.instruments.add("gen_ai.client.operation.duration", telemetry.clock() - started_s, labels)
        for token_type, tokens in (("input", response.usage.input_tokens), ("output", response.usage.output_tokens)):
            telemetry.instruments.add("gen_ai.client.token.usage", tokens, {**self._labels, a.TOKEN_TYPE: token_type})
        return response
