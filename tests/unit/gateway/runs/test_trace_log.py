"""Spans in the log: what is counted for everybody, what was said for those who look for it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.telemetry.observed import TraceLog


def test_a_span_is_logged_when_it_ends_with_whose_it_is_and_without_what_was_said() -> None:
    times = iter([1.0, 1.25])
    with (
        capture_logs() as logged,
        TraceLog(lambda: next(times), run_id="r1").span("chat", {"message_count": 2}) as span,
    ):
        span.set(content="my secret", content_length_chars=9, finish_reason="stop")
    counted, said = logged
    assert counted == {
        "event": "span",
        "log_level": "info",
        "span": "chat",
        "run_id": "r1",
        "message_count": 2,
        "content_length_chars": 9,
        "finish_reason": "stop",
        "failed": False,
        "duration_ms": 250.0,
    }
    assert (said["log_level"], said["content"]) == ("debug", "my secret")


def test_a_span_that_ends_with_an_error_is_logged_and_the_error_goes_on() -> None:
    with capture_logs() as logged, pytest.raises(ValueError, match="boom"), TraceLog().span("execute_tool", {}) as span:
        span.set(error="boom")
        raise ValueError("boom")
    assert logged[0]["failed"] is True
    assert "error" not in logged[0]
