"""How many calls may be at work follows the loop's lag: down while it is late, up while it is not and some wait."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving import admission
from gateway.serving.admission import LoadLimit, following
from gateway.serving.fair_loop import schedule_for
from gateway.support.current_tenant import CURRENT_TENANT

_LATE_S, _EARLY_S = 0.5, 0.0
_LEAST, _MOST = 16, 256


def _after(limit: LoadLimit, lag_s: float, pressure: float = 0.0, *, at_work: int, waiting: int) -> int:
    for _ in range(100):
        limit.observe(lag_s, pressure, min(at_work, limit.now), waiting)
    return limit.now


def test_calls_that_keep_the_loop_late_are_brought_down_to_the_least() -> None:
    assert _after(LoadLimit(_LEAST, _MOST), _LATE_S, at_work=_MOST, waiting=500) == _LEAST


def test_processors_that_are_all_in_use_bring_them_down_though_the_loop_is_in_time() -> None:
    assert _after(LoadLimit(_LEAST, _MOST), _EARLY_S, 1.0, at_work=_MOST, waiting=500) == _LEAST


def test_calls_that_only_wait_are_let_in_up_to_the_most() -> None:
    limit = LoadLimit(_LEAST, _MOST)
    _after(limit, _LATE_S, at_work=_MOST, waiting=500)
    assert _after(limit, _EARLY_S, at_work=_MOST, waiting=500) == _MOST


def test_one_late_tick_changes_nothing() -> None:
    limit = LoadLimit(_LEAST, _MOST)
    limit.observe(0.1, 1.0, _MOST, 1)
    assert limit.now == _MOST


def test_without_calls_that_wait_there_is_no_reason_to_raise_it() -> None:
    limit = LoadLimit(_LEAST, _MOST)
    low = _after(limit, _LATE_S, at_work=_MOST, waiting=1)
    assert _after(limit, _EARLY_S, at_work=1, waiting=0) == low


def test_a_least_above_the_most_is_the_most() -> None:
    assert _after(LoadLimit(_LEAST, 2), _LATE_S, at_work=2, waiting=9) == 2


@given(st.lists(st.tuples(st.floats(-1, 10), st.floats(-1, 2), st.integers(0, 400), st.integers(0, 400))))
def test_it_stays_between_the_two_whatever_is_observed(ticks: list[tuple[float, float, int, int]]) -> None:
    limit = LoadLimit(_LEAST, _MOST)
    for lag_s, pressure, at_work, waiting in ticks:
        limit.observe(lag_s, pressure, at_work, waiting)
        assert _LEAST <= limit.now <= _MOST


async def test_the_delay_of_a_blocked_loop_is_reported() -> None:
    lags: asyncio.Queue[float] = asyncio.Queue()
    async with following(lambda lag_s, _: lags.put_nowait(lag_s)):
        await lags.get()
        time.sleep(0.5)  # the loop cannot go on meanwhile
        assert await lags.get() > 0.3


async def test_each_look_at_the_lag_begins_in_no_tenant_s_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: asyncio.Queue[str | None] = asyncio.Queue()

    def behind_the_busiest(loop: asyncio.AbstractEventLoop, measure: Callable[[], object]) -> None:
        begun.put_nowait(CURRENT_TENANT.get())
        context = contextvars.copy_context()
        context.run(schedule_for, "busy")
        loop.call_soon(measure, context=context)

    monkeypatch.setattr(admission, "call_last", behind_the_busiest)
    async with following(lambda _lag_s, _pressure: None), asyncio.timeout(30):
        assert [await begun.get() for _ in range(3)] == [None] * 3
