from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from gateway.support.heavy_work import HeavyWork


async def test_a_tenant_waits_for_no_more_than_one_turn_of_another_however_much_that_asks_for() -> None:
    work = HeavyWork(places=1)
    gate, order = threading.Event(), []
    first = asyncio.create_task(work.of("busy")(gate.wait))
    await asyncio.sleep(0)
    busy = [asyncio.create_task(work.of("busy")(order.append, "busy")) for _ in range(20)]
    await asyncio.sleep(0)
    quiet = asyncio.create_task(work.of("quiet")(order.append, "quiet"))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, quiet, *busy)
    assert order.index("quiet") <= 1
    work.close()


async def test_a_tenant_has_one_turn_at_a_time_and_leaves_places_to_others() -> None:
    work = HeavyWork(places=2)
    gate = threading.Event()
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def step(tenant: str) -> None:
        under_way[tenant] += 1
        most[tenant] = max(most[tenant], under_way[tenant])
        gate.wait(10)
        under_way[tenant] -= 1

    busy = [asyncio.create_task(work.of("busy")(step, "busy")) for _ in range(5)]
    await asyncio.sleep(0)
    assert await work.of("quiet")(int, "7") == 7
    gate.set()
    await asyncio.gather(*busy)
    assert most["busy"] == 1
    work.close()


async def test_who_is_cancelled_keeps_its_turn_until_its_thread_is_free() -> None:
    work = HeavyWork(places=1)
    gate, begun = threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        gate.wait(10)

    task = asyncio.create_task(work.of("a")(step))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    following = asyncio.create_task(work.of("b")(gate.is_set))
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert await following
    with pytest.raises(asyncio.CancelledError):
        await task
    work.close()


async def test_what_the_work_raises_comes_back_and_frees_the_turn() -> None:
    work = HeavyWork(places=1)
    with pytest.raises(ValueError, match="invalid literal"):
        await work.of("a")(int, "x")
    assert await work.of("a")(int, "1") == 1
    work.close()
