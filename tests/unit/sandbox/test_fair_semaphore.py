"""Places of which no tenant has all; tests/unit/sandbox/engines/test_fair_creation.py tests the rest."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from sandbox.errors import TooManyWaiting
from sandbox.fair_semaphore import FairSemaphore


class Waiters:
    """Those who want a turn, and who has one."""

    def __init__(self, turns: FairSemaphore) -> None:
        self.turns = turns
        self.under_way: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.most_of_one = 0

    async def ask(self, tenant: str, number: int = 1) -> list[asyncio.Task[None]]:
        asked = [asyncio.create_task(self._have(tenant)) for _ in range(number)]
        self.tasks += asked
        await settle()
        return asked

    async def end(self, tenant: str) -> None:
        next(event for one, event in self.under_way if one == tenant).set()
        await settle()

    def have(self) -> str:
        return "".join(sorted(tenant for tenant, _ in self.under_way))

    async def _have(self, tenant: str) -> None:
        async with self.turns.turn(tenant):
            mine = (tenant, asyncio.Event())
            self.under_way.append(mine)
            self.most_of_one = max(self.most_of_one, *Counter(one for one, _ in self.under_way).values())
            try:
                await mine[1].wait()
            finally:
                self.under_way.remove(mine)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_tenant_leaves_a_place_to_others_and_gets_no_more_when_they_go() -> None:
    waiters = Waiters(FairSemaphore(3, of_one=2))
    await waiters.ask("a", 10)
    assert waiters.have() == "aa"
    await waiters.ask("b")
    assert waiters.have() == "aab"
    await waiters.ask("b")
    await waiters.ask("c")
    assert waiters.have() == "aab"
    await waiters.end("a")
    assert waiters.have() == "abc"
    await waiters.end("b")
    await waiters.end("c")
    assert waiters.have() == "aab"


async def test_no_place_is_lost_or_free_while_a_caller_may_have_it() -> None:
    chance = random.Random(3)
    for _ in range(30):
        waiters = Waiters(FairSemaphore(3, of_one=2))
        for _ in range(60):
            await waiters.ask(chance.choice("aaab"))
            if chance.random() < 0.3:
                chance.choice(waiters.tasks).cancel()
            if waiters.under_way and chance.random() < 0.5:
                chance.choice(waiters.under_way)[1].set()
            await settle()
            assert waiters.most_of_one <= 2
            assert len(waiters.under_way) <= 3
            have, waiting = Counter(one for one, _ in waiters.under_way), {*waiters.turns._waiting}
            assert len(waiters.under_way) == 3 or all(have[tenant] == 2 for tenant in waiting)
        for task in waiters.tasks:
            task.cancel()
        await asyncio.gather(*waiters.tasks, return_exceptions=True)
        assert (any(waiters.turns._waiting.values()), waiters.turns._free) == (False, 3)


async def test_who_gave_up_counts_no_more_among_those_that_wait() -> None:
    waiters = Waiters(FairSemaphore(1, 2))
    _, waits, _ = await waiters.ask("a", 3)
    waits.cancel()
    await settle()
    (later,) = await waiters.ask("a")
    assert not later.done()
    for _ in range(3):
        await waiters.end("a")
    await asyncio.gather(*waiters.tasks, return_exceptions=True)
    assert not waiters.turns._waiting


async def test_what_waits_is_named_to_a_caller_that_may_not_wait() -> None:
    waiters = Waiters(FairSemaphore(1, 2, what="snapshots wait to be taken"))
    await waiters.ask("a", 3)
    with pytest.raises(TooManyWaiting, match="2 snapshots wait to be taken"):
        await waiters._have("a")
    for _ in range(3):
        await waiters.end("a")
    await asyncio.gather(*waiters.tasks)
