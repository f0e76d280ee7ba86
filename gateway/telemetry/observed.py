"""Observes models, sandboxes and runs; a run has one span for each time a gateway hosts it, in one trace.

No trace continues inside a sandbox: the gateway measures the time between request and answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import structlog
from opentelemetry.trace import Span, SpanKind

from agent.capabilities.tracing import Attribute, RecordedSpan
from agent.events import Event, EventSink
from agent.hooks.hook import InferenceRequest
from agent.models.model import Model, OnDelta
from agent.state import AgentState, ModelResponse
from gateway.telemetry import attributes as a
from gateway.telemetry.hook import TRACEPARENT
from gateway.telemetry.telemetry import PROPAGATOR, Telemetry, current, failed
from sandbox.engines.engine import Creator
from sandbox.keeper.leases import Leases
from sandbox.sandbox import Sandbox, SandboxSpec

# The wire's dialect; the actual provider behind the endpoint is unknown.
_PROVIDER = "openai"
_FINISH_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call", "refusal"})
# Content of a model, a tool or a program; at info, an error is only reported as having happened.
_SAID = frozenset({"content", "arguments", "output", "error"})
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
        return self._observed(partial(self.inner.acquire, spec))

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self._observed(partial(self.inner.acquire_existing, spec))

    @asynccontextmanager
    async def _observed(self, lease: Callable[[], AbstractAsyncContextManager[_Leased]]) -> AsyncIterator[_Leased]:
        telemetry = self.telemetry
        started_s = telemetry.clock()
        with telemetry.within("use_sandbox", {}, SpanKind.CLIENT) as span:
            async with lease() as sandbox:
                acquire_s = telemetry.clock() - started_s
                telemetry.instruments.add("airlock.sandbox.acquire.duration", acquire_s)
                if sandbox is not None and span.is_recording():
                    span.set_attributes({a.SANDBOX_ID: sandbox.id, a.ACQUIRE_S: round(acquire_s, 6)})
                yield sandbox


class RunSpan:
    """The span of a run while this gateway hosts it; the run's last event sets its status."""

    def __init__(self, span: Span) -> None:
        self.status = ""
        self._span = span

    def observing(self, sink: EventSink) -> EventSink:
        """Return a sink that records how the run ends and passes each event on."""

        def observe(event: Event) -> None:
            if event.type == "run_finished":
                self.status = str(event.payload.get("status", ""))
                usage = event.payload.get("usage")
                if isinstance(usage, dict):
                    self._count(a.INPUT_TOKENS, usage.get("input_tokens"))
                    self._count(a.OUTPUT_TOKENS, usage.get("output_tokens"))
            elif event.type == "run_suspended":
                self.status = "waiting"
            sink(event)

        return observe

    def _count(self, name: str, value: object) -> None:
        if isinstance(value, int):
            self._span.set_attribute(name, value)


@contextmanager
def hosted(telemetry: Telemetry, state: AgentState, *, tenant: str, agent: str, model: str) -> Iterator[RunSpan]:
    """Observe a run while the block hosts it; a resumed run continues its trace."""
    parent = state.notes.get(TRACEPARENT)
    span = telemetry.tracer.start_span(
        f"invoke_agent {agent}",
        context=PROPAGATOR.extract({"traceparent": parent}) if isinstance(parent, str) else None,
        attributes={
            a.OPERATION: "invoke_agent",
            a.PROVIDER: "openai",
            a.AGENT: agent,
            a.CONVERSATION: state.thread,
            a.RUN_ID: state.run_id,
            a.TENANT: tenant,
            a.REQUEST_MODEL: model,
        },
    )
    run = RunSpan(span)
    started_s = telemetry.clock()
    telemetry.instruments.add("airlock.run.live", 1)
    try:
        with current(span):
            yield run
    except BaseException as error:
        run.status = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
        failed(span, type(error).__name__)
        raise
    finally:
        telemetry.instruments.add("airlock.run.live", -1)
        telemetry.instruments.add(
            "airlock.run.duration", telemetry.clock() - started_s, {a.RUN_STATUS: run.status or "failed"}
        )
        span.set_attribute(a.RUN_STATUS, run.status or "failed")
        if run.status == "failed" and span.is_recording():
            failed(span, "failed")
        span.end()


class TraceLog:
    """A Recorder that logs each span when it ends; `facts` identify the run.

    Counts and times are logged at info; at debug also the content, which may contain secrets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, **facts: str) -> None:
        self._clock = clock
        self._log = structlog.get_logger(__name__).bind(**facts)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[RecordedSpan]:
        span = RecordedSpan(name, dict(attributes))
        started_s = self._clock()
        try:
            yield span
        finally:
            duration_ms = round((self._clock() - started_s) * 1000, 3)
            counted = {key: value for key, value in span.attributes.items() if key not in _SAID}
            self._log.info("span", span=name, **counted, failed="error" in span.attributes, duration_ms=duration_ms)
            self._log.debug("span said", span=name, **{k: v for k, v in span.attributes.items() if k in _SAID})
