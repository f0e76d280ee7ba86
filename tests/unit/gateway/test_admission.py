"""Calls are admitted fairly, wait within bounds, and are refused with a time after which to come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.errors import Overloaded
from gateway.serving.admission import Admission
from gateway.serving.admission_settings import AdmissionSettings

_PATIENT_S = 600.0


class _Calls:
    """Calls that work until they are told to end; `begun` has their tenants, in the order in which they began."""

    def __init__(self, **settings: float) -> None:
        self.now_s = 0.0
        self.admission = Admission(
            AdmissionSettings.model_validate({"queue_wait_s": _PATIENT_S, **settings}), clock=lambda: self.now_s
        )
        self.begun: list[str] = []
        self._ends: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, tenant: str, count: int = 1, *, size_bytes: int = 0) -> list[asyncio.Task[None]]:
        """Make calls, and let each of them go as far as it gets."""
        tasks = [asyncio.create_task(self._call(tenant, size_bytes)) for _ in range(count)]
        self._tasks += tasks
        await self.settle()
        return tasks

    async def end(self, count: int = 1) -> None:
        """End the calls that have been at work longest, one after the other."""
        for _ in range(count):
            self._ends.pop(0).set()
            await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, tenant: str, size_bytes: int) -> None:
        async with self.admission.work(tenant, size_bytes=size_bytes):
            self.begun.append(tenant)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()


@contextlib.asynccontextmanager
async def _calls(**settings: float) -> AsyncIterator[_Calls]:
    calls = _Calls(**settings)
    try:
        yield calls
    finally:
        await calls.close()
        left = calls.admission.snapshot()
        assert (left.at_work, left.waiting, left.streams, left.request_bytes) == (0, 0, 0, 0), left


async def test_five_hundred_queued_calls_of_one_tenant_delay_another_by_one_turn_at_most() -> None:
    async with _calls(calls_at_once=4, calls_at_once_per_tenant=4, queue_per_tenant=500) as calls:
        # The quarter that is kept for tenants with nothing at work is in use by then, too.
        await calls.ask("greedy", 500)
        await calls.ask("other")
        await calls.ask("single")
        assert calls.begun == ["greedy"] * 4 + ["other"]
        await calls.end()
        assert calls.begun[-1] == "single"


async def test_places_that_get_free_go_round_among_the_tenants_that_wait() -> None:
    async with _calls(calls_at_once=2, calls_at_once_per_tenant=2, queue_per_tenant=500) as calls:
        await calls.ask("a", 100)
        await calls.ask("b", 100)
        await calls.ask("c", 100)
        await calls.end(60)
        counts = {tenant: calls.begun.count(tenant) for tenant in "abc"}
        assert max(counts.values()) - min(counts.values()) <= 2, counts


async def test_a_tenant_has_so_many_at_work_even_when_nobody_else_calls() -> None:
    async with _calls(calls_at_once=8, calls_at_once_per_tenant=2) as calls:
        await calls.ask("a", 5)
        assert len(calls.begun) == 2
        assert calls.admission.snapshot().waiting == 3


async def test_past_its_queue_a_tenant_is_refused_with_a_time_that_grows_with_what_waits() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1, queue_per_tenant=2) as calls:
        await calls.ask("a")
        calls.now_s = 20.0  # a call that took 20 s: the service time that is remembered is 1 s
        await calls.end()
        (first,) = await calls.ask("a")
        await calls.ask("a", 2)
        (refused,) = await calls.ask("a")
        error = refused.exception()
        assert isinstance(error, Overloaded)
        assert error.retry_after_s == pytest.approx(4.0)
        assert not first.done()
        assert calls.admission.snapshot().refused == 1


async def test_a_call_waits_no_longer_than_its_own_deadline() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1) as calls:
        await calls.ask("a")
        with pytest.raises(Overloaded, match="no place was free"):
            async with calls.admission.work("a", patience_s=0.001):
                pytest.fail("there is no place")
        assert calls.admission.snapshot().waiting == 0


async def test_a_call_that_is_cancelled_while_it_waits_takes_nobodys_turn() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1) as calls:
        await calls.ask("a")
        (gone,) = await calls.ask("a")
        await calls.ask("a")
        gone.cancel()
        await calls.settle()
        await calls.end()
        assert calls.begun == ["a", "a"]


async def test_a_place_given_to_a_call_that_is_cancelled_at_that_moment_goes_to_the_next() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1) as calls:
        await calls.ask("a")
        gone, kept = await calls.ask("b", 2)  # b's first is in the reserve and works, its second waits
        (last,) = await calls.ask("c")
        del gone
        calls._ends[0].set()
        await asyncio.sleep(0)
        kept.cancel()
        last.cancel()
        await calls.settle()
        await calls.ask("d")
        assert calls.begun[-1] == "d"


async def test_what_fails_gives_its_place_back() -> None:
    admission = Admission(AdmissionSettings(calls_at_once=1, calls_at_once_per_tenant=1, queue_per_tenant=0))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with admission.work("a"):
                raise RuntimeError
    assert admission.snapshot().admitted == 3


async def test_large_requests_of_a_tenant_are_bounded_together_and_one_is_always_let_in() -> None:
    async with _calls(request_bytes=100, request_bytes_per_tenant=60) as calls:
        await calls.ask("a", size_bytes=1000)
        (refused,) = await calls.ask("a", size_bytes=1)
        assert isinstance(refused.exception(), Overloaded)
        await calls.ask("b", size_bytes=10)
        assert calls.begun == ["a", "b"]


async def test_streams_are_counted_apart_and_given_back() -> None:
    admission = Admission(AdmissionSettings(streams_per_tenant=1))
    for _ in range(2):
        with admission.stream("a"):
            with pytest.raises(Overloaded, match="1 streams of this tenant"), admission.stream("a"):
                pass
            with admission.stream("b"):
                pass
            async with admission.work("a"):
                assert admission.snapshot().streams == 1


def test_a_share_larger_than_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="no tenant would get so many"):
        AdmissionSettings(calls_at_once=1, calls_at_once_per_tenant=2)
