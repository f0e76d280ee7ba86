"""Spans as log lines: counts and times at info; at debug also the content, which may contain secrets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog

from agent.capabilities.tracing import Attribute, RecordedSpan

# Content of a model, a tool or a program; at info, an error is only reported as having happened.
_SAID = frozenset({"content", "arguments", "output", "error"})


class TraceLog:
    """A Recorder that logs each span when it ends; `facts` identify the run."""

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
