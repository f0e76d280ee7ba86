from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from gateway.serving import fair_loop
from gateway.serving.fair_loop import FairQueue, call_last, make_fair, schedule_for

_STEPS = 50


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    make_fair(made)
    yield made
    made.close()


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def _steps_of_a_busy_tenant_beside_a_quiet_one() -> int:
    """Return how many steps 100 tasks of a busy tenant get while a quiet tenant's task makes its steps."""
    steps = 0

    async def busy() -> None:
        nonlocal steps
        schedule_for("busy")
        while True:
            steps += 1
            _spin(0.0001)
            await asyncio.sleep(0)

    async def quiet() -> int:
        schedule_for("quiet")
        await asyncio.sleep(0.05)  # until the busy tenant has used more than its share
        before = steps
        for _ in range(_STEPS):
            _spin(0.0001)
            await asyncio.sleep(0)
        return steps - before

    tasks = [asyncio.create_task(busy()) for _ in range(100)]
    try:
        return await asyncio.create_task(quiet())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_asyncio_has_the_queue_that_is_replaced(loop: asyncio.AbstractEventLoop) -> None:
    assert isinstance(vars(loop)["_ready"], FairQueue)


def test_a_quiet_tenant_s_steps_do_not_wait_for_all_that_a_busy_one_has_ready(loop: asyncio.AbstractEventLoop) -> None:
    # In the order in which they became ready there would be 100 of the busy tenant between any two of the quiet one's.
    assert loop.run_until_complete(_steps_of_a_busy_tenant_beside_a_quiet_one()) < 4 * _STEPS
    assert asyncio.run(_steps_of_a_busy_tenant_beside_a_quiet_one()) > 50 * _STEPS


def test_a_tenant_that_was_alone_shares_the_loop_once_another_comes(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_loop, "_IDLE_S", 0.0)  # the busy tenant counts as alone until the quiet one comes
    assert loop.run_until_complete(_steps_of_a_busy_tenant_beside_a_quiet_one()) < 4 * _STEPS


def test_shared_work_that_never_ends_does_not_keep_a_tenant_from_its_turn(loop: asyncio.AbstractEventLoop) -> None:
    async def endless() -> None:
        while True:
            await asyncio.sleep(0)

    async def quiet() -> str:
        schedule_for("quiet")
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        return "done"

    async def main() -> str:
        task = asyncio.create_task(endless())
        try:
            return await asyncio.wait_for(asyncio.create_task(quiet()), 30)
        finally:
            task.cancel()

    assert loop.run_until_complete(main()) == "done"


def test_callbacks_of_a_tenant_keep_their_order_and_equal_ones_all_run(loop: asyncio.AbstractEventLoop) -> None:
    ran: list[int] = []

    async def main() -> None:
        schedule_for("t")
        for number in range(5):
            loop.call_soon(ran.append, number)
        when = loop.time()
        for _ in range(2):
            loop.call_at(when, ran.append, 7)
        await asyncio.sleep(0.05)

    loop.run_until_complete(main())
    assert ran == [0, 1, 2, 3, 4, 7, 7]


def test_a_socket_that_stays_readable_is_in_the_queue_once(loop: asyncio.AbstractEventLoop) -> None:
    left, right = socket.socketpair()
    read: list[bytes] = []

    async def main() -> None:
        schedule_for("t")
        left.setblocking(False)
        loop.add_reader(left, lambda: read.append(left.recv(1)))
        right.sendall(b"abc")
        # Each turn runs one of these, and finds the socket readable.
        spinning = [asyncio.create_task(_sleep_often()) for _ in range(20)]
        await asyncio.gather(*spinning)
        while len(read) < 3:
            await asyncio.sleep(0.001)
        loop.remove_reader(left)
        await asyncio.sleep(0.01)

    async def _sleep_often() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    with left, right:
        # One more than there are bytes would raise BlockingIOError, which the loop's handler gets.
        failed: list[object] = []
        loop.set_exception_handler(lambda _, context: failed.append(context))
        loop.run_until_complete(asyncio.wait_for(main(), 30))
    assert (read, failed) == ([b"a", b"b", b"c"], [])


def test_what_is_called_last_waits_for_all_that_is_ready(loop: asyncio.AbstractEventLoop) -> None:
    ran: list[str] = []

    async def work(tenant: str) -> None:
        schedule_for(tenant)
        await asyncio.sleep(0)
        ran.append(tenant)

    async def main() -> None:
        tasks = [asyncio.create_task(work(tenant)) for tenant in ("quiet", *["busy"] * 20)]
        await asyncio.sleep(0)  # until each of them is ready again
        await asyncio.sleep(0)
        last = loop.create_future()
        call_last(loop, lambda: (ran.append("last"), last.set_result(None)))
        await asyncio.gather(last, *tasks)

    loop.run_until_complete(main())
    assert (ran[-1], ran.count("busy"), ran.count("quiet")) == ("last", 20, 1)


def test_other_threads_add_to_nothing_but_the_deque_which_is_safe_for_threads(loop: asyncio.AbstractEventLoop) -> None:
    queue = vars(loop)["_ready"]
    context = contextvars.copy_context()
    context.run(schedule_for, "t")
    adding = threading.Thread(target=lambda: loop.call_soon_threadsafe(loop.stop, context=context))
    adding.start()
    adding.join()
    assert deque.__len__(queue) == 1
    loop.run_forever()
    loop.call_soon(loop.stop, context=context)
    assert deque.__len__(queue) == 0
    loop.run_forever()
