"""Lines of the log: which trace they belong to, and exceptions without what a tenant wrote."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from grpc._cython import cygrpc

from gateway.errors import Misconfigured
from gateway.telemetry.logging import rendered, set_up_logging
from tests.unit.gateway.redaction.secrets import B64
from tests.unit.gateway.telemetry.seen import watching

SECRET = B64[:36]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Set the log up as a gateway does, and return what reads its lines."""
    root, kept = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    set_up_logging()
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    structlog.configure(**kept)
    root.handlers[:] = handlers
    root.setLevel(level)


def fails() -> None:
    token = SECRET  # a local value
    try:
        raise ValueError(f"cannot read {token}")
    except ValueError as error:
        raise RuntimeError(f"no {token}") from error


def test_a_message_that_found_its_peer_gone_is_no_line_and_other_faults_are(lines: Any) -> None:
    gone = [cygrpc.ExecuteBatchError("Failed"), cygrpc.UsageError("RPC already finished.")]
    for name in ("asyncio", "grpc._cython.cygrpc"):
        for error in (*gone, cygrpc.UsageError("another"), ValueError("fault")):
            logging.getLogger(name).error("in %s", name, exc_info=error)
    assert len(lines()) == 4


def test_an_exception_keeps_its_class_and_places_and_no_words_of_its_own(lines: Any) -> None:
    try:
        fails()
    except RuntimeError:
        structlog.get_logger("a").exception("fault", run_id="r1")
        logging.getLogger("foreign").exception("from a library")
    ours, foreign = lines()
    for line in (ours, foreign):
        assert line["exception"].startswith("RuntimeError\n")
        assert "caused by ValueError" in line["exception"]
        assert "test_log_processors.py" in line["exception"]
        assert " fails" in line["exception"]
        assert SECRET not in json.dumps(line)
    assert (ours["event"], ours["run_id"], foreign["event"]) == ("fault", "r1", "from a library")


def test_our_own_errors_keep_their_message() -> None:
    assert rendered(Misconfigured("set OPENAI_API_KEY")) == "airlock.errors.Misconfigured: set OPENAI_API_KEY"


def test_a_group_reports_each_of_its_members() -> None:
    text = rendered(ExceptionGroup(SECRET, [ValueError(SECRET), KeyError(SECRET)]))
    assert text == "ExceptionGroup\n  of ValueError\n  of KeyError"


def test_errors_that_cause_each_other_end() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert rendered(first) == "ValueError\ncaused by KeyError"


def test_a_line_has_the_trace_that_it_is_written_in(lines: Any) -> None:
    log = structlog.get_logger("b")
    with watching().telemetry.tracer.start_as_current_span("rpc") as span:
        log.info("in it")
    log.info("after it")
    inside, after = lines()
    assert inside["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert inside["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert "trace_id" not in after
