"""Calls are admitted fairly, wait within bounds, and are refused with a time after which to come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from gateway.config.operation_settings import AdmissionSettings
from gateway.errors import Overloaded
from gateway.serving.admission import Admission
from gateway.serving.edge import ANONYMOUS, UNIDENTIFIED
from gateway.serving.health import REFLECTIONS, STREAMS
from gateway.serving.limits import OPEN_RPCS, OPEN_RPCS_WITH_FEW, OPEN_RPCS_WITH_OPERATORS
from gateway.serving.listening import CONCURRENT_RPCS
from gateway.storage.audit_store import OPERATORS

_PATIENT_S = 600.0


@contextlib.asynccontextmanager
async def _work(
    admission: Admission, tenant: str, size_bytes: int = 0, remaining_s: float | None = None
) -> AsyncIterator[None]:
    end = await admission.begin(tenant, size_bytes=size_bytes, remaining_s=remaining_s)
    try:
        yield
    finally:
        end()


class _Calls:
    """Calls that work until the test ends them; `begun` has their tenants, in the order in which they began."""

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
        async with _work(self.admission, tenant, size_bytes=size_bytes):
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


async def test_an_operator_that_waits_keeps_no_tenant_from_its_place() -> None:
    async with _calls(calls_at_once=2, calls_at_once_per_tenant=1, queue_per_tenant=5) as calls:
        for waiting in ("a", OPERATORS, OPERATORS, "c"):
            await calls.ask(waiting)
        await calls.end(3)
        assert sorted(calls.begun) == [OPERATORS, OPERATORS, "a", "c"]


async def test_a_tenant_has_so_many_at_work_even_when_no_other_tenant_calls() -> None:
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
            async with _work(calls.admission, "a", remaining_s=0.001):
                pytest.fail("there is no place")
        assert calls.admission.snapshot().waiting == 0


async def test_a_call_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
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


async def test_work_that_goes_on_without_its_caller_holds_a_place_until_it_is_done() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1) as calls:
        await calls.ask("a")
        end = calls.admission.lingering("a")  # as its caller goes
        await calls.end()
        await calls.ask("a")  # who comes back is let in, by the reserve
        await calls.ask("b")
        assert calls.begun == ["a", "a"]
        end()
        await calls.settle()
        assert calls.begun == ["a", "a", "b"]


async def test_work_without_its_caller_is_in_its_tenants_share() -> None:
    async with _calls(calls_at_once=8, calls_at_once_per_tenant=2) as calls:
        end = calls.admission.lingering("a")
        await calls.ask("a", 2)
        await calls.ask("b", 2)
        assert calls.begun == ["a", "b", "b"]
        end()
        await calls.settle()
        assert calls.begun == ["a", "b", "b", "a"]


async def test_cancellations_wait_for_no_place_and_a_tenant_has_so_many_at_once() -> None:
    async with _calls(calls_at_once=1, calls_at_once_per_tenant=1) as calls:
        await calls.ask("a", 2)
        ends = [calls.admission.cancellation("a") for _ in range(32)]
        with pytest.raises(Overloaded, match="32 cancellations"):
            calls.admission.cancellation("a")
        calls.admission.cancellation("b")()
        ends[0]()
        calls.admission.cancellation("a")


def test_all_rpcs_that_are_open_stay_below_the_servers_limit_with_a_part_for_others_and_for_operators() -> None:
    admission = Admission()
    open_rpcs: list[str] = []

    def fill(held: contextlib.ExitStack, tenant: str) -> int:
        with contextlib.suppress(Overloaded):
            for count in range(CONCURRENT_RPCS):
                held.callback(admission.open_rpc(f"{tenant}{count // 8}" if tenant == "few" else tenant))
                open_rpcs.append(tenant)
                held.callback(open_rpcs.pop)
        return len(open_rpcs)

    for _ in range(2):
        with contextlib.ExitStack() as held:
            assert fill(held, "greedy") == OPEN_RPCS
            assert fill(held, "few") == OPEN_RPCS_WITH_FEW
            assert fill(held, OPERATORS) == OPEN_RPCS_WITH_OPERATORS
    strangers = UNIDENTIFIED + ANONYMOUS + STREAMS + REFLECTIONS
    assert OPEN_RPCS_WITH_OPERATORS + strangers < CONCURRENT_RPCS


async def test_a_loop_that_is_late_lets_in_fewer_and_those_who_wait_come_in_once_it_is_not() -> None:
    async with _calls(calls_at_once=64, calls_at_once_under_load=2) as calls:
        for _ in range(100):
            calls.admission.observe(1.0, 0.0)
        await calls.ask("a", 50)
        assert len(calls.begun) == 2
        assert calls.admission.snapshot().waiting == 48
        for _ in range(100):
            calls.admission.observe(0.0, 0.0)
        await calls.settle()
        assert len(calls.begun) == 50


async def test_on_a_busy_machine_one_tenant_begins_few_calls_while_another_calls_too() -> None:
    share = 2 * (os.cpu_count() or 1)
    async with _calls(calls_at_once=256, calls_at_once_under_load=128) as calls:
        for _ in range(100):
            calls.admission.observe(1.0, 0.0)
        await calls.ask("quiet")
        await calls.ask("busy", 60)
        assert calls.begun.count("busy") == share
        calls.now_s = 1.5  # and no other tenant has called since
        calls.admission.observe(1.0, 0.0)
        await calls.settle()
        assert calls.begun.count("busy") == 60


async def test_on_an_idle_machine_a_tenant_s_calls_begin_beside_those_of_others() -> None:
    async with _calls() as calls:
        await calls.ask("quiet")
        await calls.ask("busy", 60)
        assert calls.begun.count("busy") == 60


async def test_long_running_calls_keep_no_one_out_of_a_busy_machine() -> None:
    async with _calls(calls_at_once=6, calls_at_once_per_tenant=6, calls_at_once_under_load=2) as calls:
        for _ in range(100):
            calls.admission.observe(0.0, 1.0)
        await calls.ask("a", 5)
        assert len(calls.begun) == 2
        calls.now_s = 60.0
        calls.admission.observe(0.0, 1.0)
        await calls.settle()
        assert len(calls.begun) == 4
        calls.now_s = 120.0
        calls.admission.observe(0.0, 1.0)
        await calls.ask("a", 5)
        assert len(calls.begun) == 6


async def test_what_fails_gives_its_place_back() -> None:
    admission = Admission(AdmissionSettings(calls_at_once=1, calls_at_once_per_tenant=1, queue_per_tenant=0))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with _work(admission, "a"):
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
        end = admission.stream("a")
        with pytest.raises(Overloaded, match="1 streams of this tenant"):
            admission.stream("a")
        admission.stream("b")()
        async with _work(admission, "a"):
            assert admission.snapshot().streams == 1
        end()


def test_a_share_larger_than_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="is more than calls_at_once"):
        AdmissionSettings(calls_at_once=1, calls_at_once_per_tenant=2)


async def test_uploads_of_a_tenant_wait_for_each_other_and_those_of_another_do_not() -> None:
    admission = Admission(AdmissionSettings(uploads_per_tenant=1))
    end = await admission.upload("a")
    waits = asyncio.create_task(admission.upload("a"))
    (await admission.upload("b"))()
    await asyncio.sleep(0)
    assert not waits.done()
    end()
    (await waits)()
