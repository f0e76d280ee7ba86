"""The readers' threads: a tenant that fills its share waits for itself, and no other tenant does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from gateway.storage.database import Readers
from gateway.support.current_tenant import CURRENT_TENANT


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.shut_down()


class Slow:
    """Reads that last until they are let go; `begun` counts those that have a thread."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self._go_on = threading.Event()

    def __call__(self) -> str:
        self.begun.release()
        self._go_on.wait(60)
        return "read"

    def let_go(self) -> None:
        self._go_on.set()

    async def all_begun(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.begun.acquire, timeout=60)


def _as(name: str | None, readers: Readers, read: Callable[[], str]) -> asyncio.Task[str]:
    """Read as a call of a tenant, or of an operator, does."""

    async def call() -> str:
        CURRENT_TENANT.set(name or "")
        return await readers.run(read)

    return asyncio.create_task(call())


@pytest.mark.parametrize("whose", ["slow", None])
async def test_a_caller_with_many_slow_reads_delays_no_other(readers: Readers, whose: str | None) -> None:
    slow = Slow()
    theirs = [_as(whose, readers, slow) for _ in range(20)]
    await slow.all_begun(2)
    async with asyncio.timeout(60):
        assert [await _as("other", readers, lambda: "quick") for _ in range(50)] == ["quick"] * 50
        assert await readers.run(lambda: "of the background") == "of the background"
    assert not slow.begun.acquire(blocking=False)
    slow.let_go()
    assert await asyncio.gather(*theirs) == ["read"] * 20


async def test_who_calls_is_asked_for_though_all_threads_are_busy(readers: Readers) -> None:
    slow = Slow()
    theirs = [_as(f"tenant{n}", readers, slow) for n in range(4)]
    await slow.all_begun(3)
    background = asyncio.create_task(readers.run(slow))
    await slow.all_begun(1)
    async with asyncio.timeout(60):
        assert await readers.run(lambda: "known", foremost=True) == "known"
    slow.let_go()
    await asyncio.gather(*theirs, background)


async def test_many_callers_together_leave_a_thread_to_the_background(readers: Readers) -> None:
    slow = Slow()
    theirs = [_as(f"tenant{n // 2}", readers, slow) for n in range(8)]
    await slow.all_begun(3)
    async with asyncio.timeout(60):
        assert await readers.run(lambda: "a look") == "a look"
    gone = theirs.pop(0)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    assert not slow.begun.acquire(blocking=False)
    slow.let_go()
    assert await asyncio.gather(*theirs) == ["read"] * 7


async def test_a_read_whose_caller_went_away_is_in_its_share_until_it_is_over(readers: Readers) -> None:
    slow = Slow()
    for _ in range(2):
        gone = _as("slow", readers, slow)
        await slow.all_begun(1)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
    later = [_as("slow", readers, slow) for _ in range(3)]
    assert await _as("other", readers, lambda: "quick") == "quick"
    assert not slow.begun.acquire(blocking=False)
    slow.let_go()
    assert await asyncio.gather(*later) == ["read"] * 3


async def test_a_read_that_fails_gives_its_place_back(readers: Readers) -> None:
    def fails() -> str:
        raise ValueError("no such table")

    for _ in range(5):
        with pytest.raises(ValueError, match="no such table"):
            await _as("t", readers, fails)
    assert await _as("t", readers, lambda: "read") == "read"
