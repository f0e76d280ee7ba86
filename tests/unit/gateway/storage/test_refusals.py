"""What the log says while a database refuses writes."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.storage.writer import LOG_AGAIN_S, Refusals

FULL = OSError("database or disk is full")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_refusal_is_reported_once_and_then_counted(clock: Clock) -> None:
    refusals = Refusals("sqlite:////state/airlock.db", clock)
    with capture_logs() as reported:
        for _ in range(45):
            refusals.refused(FULL, writes=2)
            clock.now_s += 1.0
    first, second = reported
    assert (first["event"], first["refused_writes"]) == ("the database refuses writes", 2)
    assert (first["error"], first["database"]) == ("database or disk is full", "sqlite:////state/airlock.db")
    assert second["refused_writes"] == 2 * LOG_AGAIN_S


def test_that_it_takes_writes_again_is_logged_with_how_many_were_refused_since(clock: Clock) -> None:
    refusals = Refusals("sqlite:////state/airlock.db", clock)
    with capture_logs() as reported:
        refusals.taken()
        refusals.refused(FULL, writes=1)
        refusals.refused(FULL, writes=3)
        refusals.taken()
        refusals.taken()
    assert [line["event"] for line in reported] == ["the database refuses writes", "the database takes writes again"]
    assert reported[1]["refused_writes"] == 3


def test_one_that_takes_some_writes_and_refuses_others_does_not_fill_the_log(clock: Clock) -> None:
    refusals = Refusals("sqlite:////state/airlock.db", clock)
    with capture_logs() as reported:
        for _ in range(100):
            refusals.refused(FULL, writes=1)
            refusals.taken()
    assert len(reported) == 2
