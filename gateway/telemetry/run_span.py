"""Observes runs: one span for each time a gateway hosts one, in the trace that it started in; spans as log lines."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog
from opentelemetry.trace import Span

from agent.capabilities.tracing import Attribute, RecordedSpan
from agent.events import Event, EventSink
from agent.state import AgentState
from gateway.telemetry import attributes as a
from gateway.telemetry.hook import TRACEPARENT
from gateway.telemetry.telemetry import PROPAGATOR, Telemetry, current, failed

# Content of a model, a tool or a program; at info, an error is only reported as having happened.
_SAID = frozenset({"content", "arguments", "output", "error"})


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
        """Log one span."""
        span = RecordedSpan(name, dict(attributes))
        started_s = self._clock()
        try:
            yield span
        finally:
            duration_ms = round((self._clock() - started_s) * 1000, 3)
            counted = {key: value for key, value in span.attributes.items() if key not in _SAID}
            self._log.info("span", span=name, **counted, failed="error" in span.attributes, duration_ms=duration_ms)
            self._log.debug("span said", span=name, **{k: v for k, v in span.attributes.items() if k in _SAID})
