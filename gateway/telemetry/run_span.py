"""Observes runs: one span for each time a gateway hosts a run, in the trace that the run started in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent.events import Event, EventSink
from agent.state import AgentState
from gateway.telemetry import attributes as a
from gateway.telemetry.hook import TRACEPARENT
from gateway.telemetry.telemetry import Telemetry, current, failed

_PROPAGATOR = TraceContextTextMapPropagator()


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
        context=_PROPAGATOR.extract({"traceparent": parent}) if isinstance(parent, str) else None,
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
