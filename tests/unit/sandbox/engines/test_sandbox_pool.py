"""The pool: who gets a pooled sandbox, how many there are, and when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
import pytest_asyncio

from sandbox.engines.engine import Engine
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind
from sandbox.engines.sandbox_pool import MEMORY_S, SandboxPool
from sandbox.errors import EngineFull, ImageMissing, SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.asyncio
KIND = PoolKind.of(SandboxSpec("", "", "image"))


class FakePooled:
    def __init__(self, number: int, kind: PoolKind) -> None:
        self.id = f"pool-{number}"
        self.kind = kind
        self.alive = True
        self.answers = True

    async def ping(self) -> bool:
        return self.answers


class FakeEngine:
    """An engine, and its pooled sandboxes, whose work can be held up and made to fail."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.made: list[FakePooled] = []
        self.gone: list[str] = []
        self.claimed: list[tuple[str, str]] = []
        self.created: list[str] = []
        self.tries = 0
        self.with_files: set[str] = set()
        self.fails: Exception | None = None
        self.full = False
        self.unfit = False
        self.open = asyncio.Event()
        self.open.set()
        self.creating_open = asyncio.Event()
        self.creating_open.set()

    def clock(self) -> float:
        return self.now_s

    def has(self, spec: SandboxSpec) -> bool:
        return spec.thread == "running"

    def stopped(self, spec: SandboxSpec) -> str | None:
        return "s" if spec.thread == "resting" else None

    async def create(self, spec: SandboxSpec) -> Sandbox:
        await self.creating_open.wait()
        if self.full and len(self.gone) < len(self.made):
            raise EngineFull("no room")
        self.created.append(spec.thread)
        return cast(Sandbox, f"cold-{spec.thread}")

    async def make_pooled(self, kind: PoolKind) -> FakePooled:
        self.tries += 1
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        self.made.append(FakePooled(len(self.made), kind))
        return self.made[-1]

    async def claim(self, pooled: FakePooled, spec: SandboxSpec) -> Sandbox | None:
        await self.open.wait()
        if self.unfit:
            self.gone.append(pooled.id)
            raise PooledRefused("something is in it")
        if spec.thread in self.with_files:
            return None
        self.claimed.append((pooled.id, spec.thread))
        return cast(Sandbox, pooled.id)

    async def discard(self, pooled: FakePooled) -> None:
        self.gone.append(pooled.id)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


Pool = Callable[..., SandboxPool]


@pytest_asyncio.fixture
async def pool(engine: FakeEngine) -> AsyncIterator[Pool]:
    made: list[SandboxPool] = []

    def pool(*, limit: int = 8, always: int = 0) -> SandboxPool:
        pooled = SandboxPool(cast(Engine, engine), cast(Engine, engine), engine, limit=limit, clock=engine.clock)
        if always:
            pooled.keep(KIND, always)
        made.append(pooled)
        return pooled

    yield pool
    for one in made:
        await one.drain()
    assert sorted([*engine.gone, *(pooled for pooled, _ in engine.claimed)]) == sorted(one.id for one in engine.made)


def spec(thread: str, image: str = "image", tenant: str = "t") -> SandboxSpec:
    return SandboxSpec(tenant, thread, image)


async def test_a_new_thread_gets_a_pooled_sandbox_and_no_other_one_gets_it(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=3)
    await pooled.tend()
    assert pooled.counts == {"ready": 3, "making": 0}
    got = await asyncio.gather(*(pooled.create(spec(str(number), tenant=f"t{number}")) for number in range(5)))
    assert len({*got}) == 5
    assert len(engine.claimed) == 3
    assert len(engine.created) == 2
    assert pooled.claims == {"hit": 3, "miss": 2}


@pytest.mark.parametrize("thread", ["running", "resting"])
async def test_a_thread_that_has_a_sandbox_gets_that_one(engine: FakeEngine, pool: Pool, thread: str) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    await pooled.create(spec(thread))
    assert engine.created == [thread]
    assert pooled.counts["ready"] == 1
    assert not pooled.claims


async def test_a_thread_that_has_files_gets_no_pooled_sandbox_and_the_pooled_sandbox_is_for_the_next(
    engine: FakeEngine, pool: Pool
) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    engine.with_files.add("old")
    await pooled.create(spec("old"))
    assert engine.created == ["old"]
    await pooled.create(spec("new"))
    assert engine.claimed == [("pool-0", "new")]


async def test_a_pooled_sandbox_of_another_kind_is_no_use(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    await pooled.create(spec("a", image="other"))
    assert engine.created == ["a"]
    await pooled.tend()
    assert sorted(one.kind.image for one in engine.made) == ["image", "other"]
    await pooled.create(spec("b", image="other"))
    assert [thread for _, thread in engine.claimed] == ["b"]


async def test_the_last_of_several_is_for_a_tenant_that_has_just_taken_none(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=3)
    await pooled.tend()
    await asyncio.gather(*(pooled.create(spec(str(number), tenant="burst")) for number in range(4)))
    assert (len(engine.claimed), len(engine.created), pooled.counts["ready"]) == (2, 2, 1)
    await pooled.create(spec("first", tenant="other"))
    assert [thread for _, thread in engine.claimed][2:] == ["first"]


async def test_a_tenant_that_is_alone_finds_as_many_as_it_asked_for_before(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool()
    for hits in (0, 4):
        await asyncio.gather(*(pooled.create(spec(f"{hits}-{number}")) for number in range(4)))
        assert len(engine.claimed) == hits
        await pooled.tend()


async def test_a_tenant_that_took_one_gets_a_last_one_later(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=2)
    await pooled.tend()
    for thread in ("a", "b"):
        await pooled.create(spec(thread))
    assert (engine.claimed, engine.created) == ([("pool-0", "a")], ["b"])
    engine.now_s += 10
    await pooled.create(spec("c"))
    assert engine.claimed[1:] == [("pool-1", "c")]


async def test_a_pool_of_one_serves_the_first_caller(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=1)
    for thread in ("a", "b", "c"):
        await pooled.tend()
        await pooled.create(spec(thread))
    assert [thread for _, thread in engine.claimed] == ["a", "b", "c"]


async def test_the_kind_that_lacks_most_of_its_share_is_made_first(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=4)
    pooled.keep(PoolKind.of(spec("", image="other")), 2)
    await pooled.tend()
    assert [one.kind.image for one in engine.made] == ["image", "other", "image", "image", "other", "image"]


@pytest.mark.parametrize("end", ["the pool's", "its kind's"])
async def test_a_pooled_sandbox_whose_claim_outlasts_the_pool_or_its_kind_does_not_stay(
    engine: FakeEngine, pool: Pool, end: str
) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    engine.with_files.add("old")
    engine.open.clear()
    asking = asyncio.create_task(pooled.create(spec("old")))
    await asyncio.sleep(0)
    if end == "the pool's":
        await pooled.drain()
    else:
        pooled.forget(KIND)
        await pooled.tend()
    engine.open.set()
    await asking
    assert (engine.gone, engine.created) == (["pool-0"], ["old"])


async def test_one_that_is_unfit_is_gone_and_the_thread_gets_another(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    engine.unfit = True
    await pooled.create(spec("a"))
    assert (engine.gone, engine.created) == (["pool-0"], ["a"])
    assert pooled.claims == {"refused": 1}


async def test_where_one_was_unfit_the_others_of_its_kind_are_replaced(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=3)
    await pooled.tend()
    engine.unfit = True
    await pooled.create(spec("a"))
    assert sorted(engine.gone) == ["pool-0", "pool-1", "pool-2"]
    engine.unfit = False
    await pooled.tend()
    await pooled.create(spec("b"))
    assert engine.claimed == [("pool-3", "b")]


async def test_a_caller_that_gives_up_does_not_bring_its_pooled_sandbox_back(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=1)
    await pooled.tend()
    engine.open.clear()
    asking = asyncio.create_task(pooled.create(spec("a")))
    await asyncio.sleep(0)
    assert pooled.counts["ready"] == 0
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    engine.open.set()
    assert pooled.counts["ready"] == 0
    engine.gone.append("pool-0")  # which is what the engine's claim() does then


async def test_there_are_never_more_than_the_limit_nor_many_made_at_once(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(limit=3, always=10)
    engine.open.clear()
    tending = asyncio.create_task(pooled.tend())
    for _ in range(5):
        await asyncio.sleep(0)
    assert pooled.counts == {"ready": 0, "making": 2}
    engine.open.set()
    await tending
    assert pooled.counts == {"ready": 3, "making": 0}


async def test_they_are_made_one_by_one_while_a_thread_waits_for_a_sandbox(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=3)
    engine.creating_open.clear()
    waiting = asyncio.create_task(pooled.create(spec("a")))
    await asyncio.sleep(0)
    engine.open.clear()
    tending = asyncio.create_task(pooled.tend())
    while not engine.tries:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pooled.counts == {"ready": 0, "making": 1}
    engine.creating_open.set()
    await waiting
    engine.open.set()
    await tending
    assert pooled.counts == {"ready": 3, "making": 0}


async def test_demand_makes_pooled_sandboxes_and_they_go_when_it_does(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool()
    await asyncio.gather(*(pooled.create(spec(str(number))) for number in range(4)))
    await pooled.tend()
    assert pooled.counts["ready"] == 4 + 1
    engine.now_s += MEMORY_S / 2
    await pooled.tend()
    assert 1 <= pooled.counts["ready"] < 4
    engine.now_s += MEMORY_S
    await pooled.tend()
    assert pooled.counts == {"ready": 0, "making": 0}


async def test_what_does_not_answer_or_is_old_is_replaced(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=2)
    await pooled.tend()
    engine.made[0].answers = False
    await pooled.tend()
    assert engine.gone == ["pool-0"]
    assert pooled.counts["ready"] == 2
    engine.now_s += 1800
    await pooled.tend()
    assert sorted(engine.gone) == ["pool-0", "pool-1", "pool-2"]
    assert pooled.counts["ready"] == 2


async def test_one_that_died_in_the_pool_is_not_claimed(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=2)
    await pooled.tend()
    engine.made[0].alive = False
    await pooled.create(spec("a"))
    assert engine.claimed == [("pool-1", "a")]
    await pooled.settled()
    assert engine.gone == ["pool-0"]


async def test_what_cannot_be_made_is_reported_once_and_tried_ever_more_rarely(
    engine: FakeEngine, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    pooled = pool(always=1)
    engine.fails = SandboxUnavailable("no such image")
    for _ in range(600):
        await pooled.tend()
        engine.now_s += 1
    assert 5 <= engine.tries <= 10
    assert [record.getMessage() for record in caplog.records if "pool" in record.getMessage()] == [
        "no sandbox of image image can be made for the pool: no such image"
    ]
    engine.fails = None
    engine.now_s += 300
    await pooled.tend()
    assert pooled.counts["ready"] == 1


@pytest.mark.parametrize(
    "missing, reported",
    [
        ("image", "the pool has no sandbox of image image until the first call that needs it has it pulled"),
        ("airlock-own", "no sandbox of image image can be made for the pool: gone"),
        ("", "no sandbox of image image can be made for the pool: gone"),  # the runtime's
    ],
)
async def test_an_image_that_the_first_call_has_pulled_is_no_fault(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, missing: str, reported: str
) -> None:
    caplog.set_level("INFO")
    pooled = SandboxPool(
        cast(Engine, engine),
        cast(Engine, engine),
        engine,
        limit=1,
        pulls=lambda image: image == "image",
        clock=engine.clock,
    )
    pooled.keep(KIND, 1)
    engine.fails = ImageMissing("gone", missing)
    await pooled.tend()
    assert [record.getMessage() for record in caplog.records if "pool" in record.getMessage()] == [reported]


async def test_pooled_sandboxes_make_room_where_the_engine_is_full(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(always=2)
    await pooled.tend()
    engine.full = True
    await pooled.create(spec("a", image="other"))
    assert engine.created == ["a"]
    assert sorted(engine.gone) == ["pool-0", "pool-1"]
    await pooled.tend()
    assert pooled.counts["ready"] == 0  # not at once again


async def test_without_pooled_sandboxes_an_engine_that_is_full_says_so(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(limit=1)
    engine.full = True
    engine.made.append(FakePooled(0, KIND))
    with pytest.raises(EngineFull):
        await pooled.create(spec("a"))
    engine.gone.append("pool-0")


async def test_the_background_makes_what_was_asked_for_and_the_end_takes_it_away(
    engine: FakeEngine, pool: Pool
) -> None:
    pooled = pool(always=2)
    pooled.begin()
    while pooled.counts["ready"] < 2:
        await asyncio.sleep(0)
    await pooled.create(spec("a"))
    while pooled.counts["ready"] < 2:
        await asyncio.sleep(0)
    await pooled.drain()
    assert len(engine.gone) + len(engine.claimed) == len(engine.made)
    assert pooled.counts == {"ready": 0, "making": 0}
    await pooled.create(spec("b"))
    assert engine.created == ["b"]


async def test_a_limit_of_none_makes_none(engine: FakeEngine, pool: Pool) -> None:
    pooled = pool(limit=0, always=2)
    pooled.begin()
    await pooled.create(spec("a"))
    await pooled.tend()
    assert engine.tries == 0
