"""Whose sandbox is made next, when more are asked for than are made at once. Places are counted, not seconds."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any, cast

import pytest

from sandbox.engines.engine import Engine
from sandbox.engines.fair_creation import FairCreation
from sandbox.errors import SandboxUnavailable, TooManyWaiting
from sandbox.sandbox import Sandbox, SandboxSpec


class SlowEngine:
    """Makes nothing until the test says so, and knows in which order it was asked."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most_at_once = 0
        self._under_way: dict[str, asyncio.Future[str]] = {}

    async def create(self, spec: SandboxSpec) -> str:
        name = f"{spec.tenant}{spec.thread}"
        self.begun.append(name)
        self._under_way[name] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self._under_way))
        try:
            return await self._under_way[name]
        finally:
            del self._under_way[name]

    async def end(self, name: str = "", error: Exception | None = None) -> None:
        """End a creation, the one that began first if no other is named, and let what follows begin."""
        future = self._under_way[name or next(iter(self._under_way))]
        if error is None:
            future.set_result("made")
        else:
            future.set_exception(error)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def spec(tenant: str, thread: str) -> SandboxSpec:
    return SandboxSpec(tenant, thread, "image")


class Asked:
    """A fair creation around the slow engine, and its callers."""

    def __init__(self, *, at_once: int, waiting_limit: int = 64) -> None:
        self.engine = SlowEngine()
        self.fair = FairCreation(cast(Engine, self.engine), at_once=at_once, waiting_limit=waiting_limit)

    async def ask(self, tenant: str, number: int = 1, first: int = 0) -> list[asyncio.Task[Sandbox]]:
        tasks = [
            asyncio.create_task(cast(Any, self.fair.create(spec(tenant, str(first + one))))) for one in range(number)
        ]
        await settle()
        return tasks

    async def endings_until(self, name: str) -> int:
        """Return how many creations end before one begins."""
        ended = 0
        while name not in self.engine.begun:
            await self.engine.end()
            ended += 1
        return ended


async def test_no_more_are_made_at_once_than_there_are_places() -> None:
    asked = Asked(at_once=3)
    tasks = await asked.ask("a", 20)
    assert len(asked.engine.begun) == 3
    for _ in tasks:
        await asked.engine.end()
    assert [task.result() for task in tasks] == ["made"] * 20
    assert asked.engine.most_at_once == 3


async def test_two_for_each_processor_are_made_at_once_where_nothing_is_said() -> None:
    engine = SlowEngine()
    fair = FairCreation(cast(Engine, engine))
    places = 2 * len(os.sched_getaffinity(0))
    tasks = [asyncio.create_task(cast(Any, fair.create(spec("a", str(one))))) for one in range(places + 5)]
    await settle()
    assert len(engine.begun) == places
    for _ in tasks:
        await engine.end()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("burst", [1, 5, 50])
async def test_a_burst_of_another_tenant_costs_one_ending_however_large_it_is(burst: int) -> None:
    asked = Asked(at_once=2)
    await asked.ask("burst", burst + 2)
    await asked.ask("b")
    assert await asked.endings_until("b0") == 1


async def test_each_tenant_that_waits_already_costs_one_ending_more() -> None:
    asked = Asked(at_once=2)
    await asked.ask("burst", 50)
    for other in "cdefg":
        await asked.ask(other, 10)
    await asked.ask("b", 10)
    assert await asked.endings_until("b0") <= 1 + len("cdefg") + 1


async def test_tenants_with_bursts_get_as_many_as_each_other() -> None:
    asked = Asked(at_once=3)
    for tenant in "abc":
        await asked.ask(tenant, 30)
    for _ in range(45):
        await asked.engine.end()
    shares = Counter(name[0] for name in asked.engine.begun)
    assert max(shares.values()) - min(shares.values()) <= 3


async def test_the_bound_holds_whatever_ends_fails_or_is_given_up_in_between() -> None:
    chance = random.Random(7)
    for _ in range(50):
        places = chance.randint(1, 4)
        asked = Asked(at_once=places)
        tasks = []
        others = "cdefghij"[: chance.randint(0, 8)]
        for tenant in ("a", *others):
            tasks += await asked.ask(tenant, chance.randint(1, 30))
        await asked.ask("b", 3)
        ended = 0
        while "b0" not in asked.engine.begun:
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
                await settle()
            elif asked.engine._under_way:
                await asked.engine.end(error=SandboxUnavailable("no") if chance.random() < 0.3 else None)
                ended += 1
            if chance.random() < 0.3:
                tasks += await asked.ask("a", 5, first=1000 * ended)
        assert ended <= 1 + len(others) + 1
        assert asked.engine.most_at_once <= places
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_tenant_s_queue_is_bounded_and_no_other_s() -> None:
    asked = Asked(at_once=1, waiting_limit=4)
    tasks = await asked.ask("a", 6)
    with pytest.raises(TooManyWaiting, match="4 sandboxes of this tenant wait") as refused:
        await tasks[5]
    assert refused.value.retry_after_s
    assert not any(task.done() for task in tasks[:5])
    (other,) = await asked.ask("b")
    assert not other.done()


async def test_who_gives_up_leaves_no_place_taken() -> None:
    asked = Asked(at_once=1)
    tasks = await asked.ask("a", 4)
    tasks[1].cancel()
    asked.engine._under_way["a0"].set_result("made")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[2].cancel()  # about when it is given the place
    await settle()
    await asked.engine.end("a3")
    assert tasks[3].result() == "made"
    (later,) = await asked.ask("b")
    await asked.engine.end()
    assert later.result() == "made"
