"""SandboxKeeper over an engine that counts."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from sandbox.engines.engine import Engine
from sandbox.engines.lifetime import GRACE_S
from sandbox.errors import SandboxUnavailable
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec, owner_of
from sandbox.transition import MADE_OTHERWISE, NO_ANSWER, UNUSED
from tests.sandbox_keeper import make_keeper


class FakeSandbox:
    def __init__(self, sandbox_id: str, spec: SandboxSpec) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.alive = True
        self.answers = True
        self.outdated = False
        self.overdue_s: float | None = None
        self.users = 0
        self.others_use = False
        # Whether another process removed it: known when a use begins, and not before.
        self.removed = False

    def grow_old(self, overdue_s: float) -> None:
        self.overdue_s, self.outdated = overdue_s, True

    @property
    def busy(self) -> bool:
        return self.users > 0 or self.others_use

    async def ping(self) -> bool:
        return self.answers

    def borrow(self) -> bool:
        self.alive = self.alive and not self.removed
        self.users += self.alive
        return self.alive

    def give_back(self) -> None:
        self.users -= 1


class FakeEngine:
    def __init__(self) -> None:
        self.made: list[FakeSandbox] = []
        self.live: set[str] = set()
        self.failure: Exception | None = None
        # How many of those that create() returns next are another process', past their lifetime and in use.
        self.overdue_for = 0
        # How often calls were ended in a sandbox past its lifetime.
        self.ended = 0
        self.may_create = asyncio.Event()
        self.may_create.set()
        self.may_remove = asyncio.Event()
        self.may_remove.set()
        self.workspaces_removed = False
        self.stopped: list[str] = []
        self.reasons: list[str] = []
        self.trimmed: list[tuple[float, int]] = []
        self.left: dict[tuple[str, str], str] = {}
        # What other processes have: whose, and whether it is in use.
        self.others: dict[tuple[str, str], bool] = {}

    def has(self, spec: SandboxSpec) -> bool:
        return owner_of(spec) in {**self.left, **self.others}

    def owners(self) -> Sequence[tuple[str, str]]:
        return [*self.left, *self.others]

    async def find(self, spec: SandboxSpec) -> FakeSandbox | None:
        return await self.create(spec) if owner_of(spec) in self.left else None

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        idle = [one for one, busy in self.others.items() if not busy and tenant in (None, one[0])]
        if idle:
            del self.others[idle[0]]
            if stop:
                self.stopped.append(idle[0][0])
        return bool(idle)

    async def reconcile(self) -> Sequence[LeftSandbox]:
        return [LeftSandbox(sandbox_id, *key) for key, sandbox_id in self.left.items()]

    def leave(self, *specs: SandboxSpec) -> list[LeftSandbox]:
        """Return what an earlier process left for specs, the newest first."""
        for number, spec in enumerate(specs):
            self.left[owner_of(spec)] = f"left{number}"
            self.live.add(f"left{number}")
        return [LeftSandbox(sandbox_id, *key) for key, sandbox_id in self.left.items()]

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        await self.may_create.wait()
        if self.failure is not None:
            raise self.failure
        sandbox = FakeSandbox(self.left.pop(owner_of(spec), f"s{len(self.made)}"), spec)
        if self.overdue_for:
            self.overdue_for -= 1
            sandbox.grow_old(0.0)
            sandbox.others_use = True
        self.made.append(sandbox)
        self.live.add(sandbox.id)
        return sandbox

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        self.reasons.append(reason)
        self.left = {key: other for key, other in self.left.items() if other != sandbox_id}
        await self.may_remove.wait()
        self.live.discard(sandbox_id)

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        assert (tenant, thread, overdue) == ("tenant", "t", True)
        self.ended += 1
        last = self.made[-1]
        last.alive = last.others_use = False
        self.live.discard(last.id)
        return True

    async def stop_idle(self, sandbox_id: str) -> bool:
        await self.remove(sandbox_id)
        self.stopped.append(sandbox_id)
        return True

    def stopped_count(self) -> int:
        return 7

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        return ListedSandbox("s", thread, "image", "runc", 1.0, "idle_stopped", 2.0)

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        return ListedSandbox("s", thread, "image", "runc", 1.0)

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        self.trimmed.append((timeout_s, limit))
        return 0

    async def remove_workspaces(self) -> None:
        assert not self.live
        self.workspaces_removed = True

    async def owned(self) -> Sequence[str]:
        return sorted(self.live)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def spec(thread: str = "t", **changes: Any) -> SandboxSpec:
    return SandboxSpec("tenant", thread, "image", **changes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def keeper(engine: FakeEngine, clock: Clock) -> AsyncIterator[SandboxKeeper]:
    made = make_keeper(cast("Engine", engine), idle_timeout_s=60, max_live=2, clock=clock)
    yield made
    engine.may_remove.set()
    await made.close()


@asynccontextmanager
async def borrowed(keeper: SandboxKeeper, **changes: Any) -> AsyncIterator[FakeSandbox]:
    async with keeper.acquire(spec(**changes)) as sandbox:
        yield cast("FakeSandbox", cast("Sandbox", sandbox))


async def test_a_thread_gets_the_same_sandbox_again(keeper: SandboxKeeper, engine: FakeEngine) -> None:
    async with borrowed(keeper) as first:
        pass
    async with borrowed(keeper) as second:
        assert second is first
    assert len(engine.made) == 1


async def test_calls_that_ask_at_the_same_time_make_one_sandbox(keeper: SandboxKeeper, engine: FakeEngine) -> None:
    engine.may_create.clear()

    async def ask() -> str:
        async with borrowed(keeper) as sandbox:
            return sandbox.id

    asking = [asyncio.create_task(ask()) for _ in range(5)]
    await asyncio.sleep(0)
    engine.may_create.set()
    assert set(await asyncio.gather(*asking)) == {"s0"}


async def test_a_dead_sandbox_is_removed_before_its_replacement_is_made(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    async with borrowed(keeper) as first:
        first.alive = False
    async with borrowed(keeper) as second:
        assert second.id != first.id
        assert engine.live == {second.id}


async def test_a_sandbox_left_alone_is_asked_whether_it_lives(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    async with borrowed(keeper) as first:
        first.answers = False
    async with borrowed(keeper) as second:
        assert second is first  # used just now: taken at its word
    clock.now_s += 10
    async with borrowed(keeper) as third:
        assert third is not first
        assert engine.reasons == [NO_ANSWER]


async def test_a_busy_sandbox_is_not_replaced_for_answering_late(keeper: SandboxKeeper, clock: Clock) -> None:
    async with borrowed(keeper) as first:
        first.answers = False
        clock.now_s += 10
        async with borrowed(keeper) as second:
            assert second is first


async def test_another_spec_gets_another_sandbox_once_the_old_one_is_unused(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    async with borrowed(keeper) as first, borrowed(keeper, runtime="runsc") as second:
        assert second is first
    async with borrowed(keeper, runtime="runsc") as third:
        assert third.spec.runtime == "runsc"
        assert engine.live == {third.id}
        assert engine.reasons == [MADE_OTHERWISE]


async def test_past_its_lifetime_no_call_begins_in_a_sandbox_and_the_next_has_a_new_one_when_those_in_it_are_over(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    first_may_end = asyncio.Event()
    begun: list[str] = []

    async def call(until: asyncio.Event | None = None) -> None:
        async with borrowed(keeper) as sandbox:
            begun.append(sandbox.id)
            if until is not None:
                await until.wait()

    async with asyncio.TaskGroup() as calls:
        calls.create_task(call(first_may_end))
        while not begun:
            await asyncio.sleep(0)
        engine.made[0].grow_old(0.0)
        for _ in range(3):
            calls.create_task(call())
        async with asyncio.timeout(5):
            while not cast(Any, keeper)._places.by_owner[owner_of(spec())].lock.locked():
                await asyncio.sleep(0)
        assert begun == ["s0"]
        first_may_end.set()
    assert begun == ["s0", "s1", "s1", "s1"]
    assert (engine.live, engine.ended) == ({"s1"}, 0)


@pytest.mark.parametrize("whose", ["mine", "another process'"])
async def test_calls_that_go_on_for_long_after_the_lifetime_of_their_sandbox_are_ended_by_the_next(
    keeper: SandboxKeeper, engine: FakeEngine, whose: str
) -> None:
    async with borrowed(keeper) as old:
        pass
    old.grow_old(GRACE_S)
    if whose == "mine":
        old.users += 1
    else:
        old.others_use = True
    async with asyncio.timeout(5), borrowed(keeper) as new:  # it is no look of the keeper that ends them
        assert (old.alive, new.id, engine.ended) == (False, "s1", 1)


async def test_what_another_process_has_past_its_lifetime_is_waited_for(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.overdue_for = 1
    async with asyncio.TaskGroup() as calls:

        async def call() -> None:
            async with borrowed(keeper) as sandbox:
                assert sandbox is engine.made[1]

        calls.create_task(call())
        async with asyncio.timeout(5):
            while not engine.made:
                await asyncio.sleep(0)
        engine.made[0].others_use = False


async def test_a_look_ends_what_is_long_past_its_lifetime_and_stops_what_is_idle_then(
    engine: FakeEngine, clock: Clock
) -> None:
    keeper = make_keeper(cast(Engine, engine), stopped_timeout_s=60, clock=clock)
    async with borrowed(keeper) as old:
        old.grow_old(GRACE_S - 1)
        keeper.sweep()
        await keeper.settled()
        assert engine.ended == 0
        old.grow_old(GRACE_S)
        keeper.sweep()
        await keeper.settled()
        assert engine.ended == 1
    await keeper.settled()
    async with borrowed(keeper) as idle:
        pass
    keeper.sweep()
    idle.grow_old(0.0)
    assert engine.stopped == []
    keeper.sweep()
    await keeper.settled()
    assert engine.stopped == [idle.id]
    await keeper.close()


async def test_what_is_past_its_lifetime_is_stopped_before_it_is_replaced_so_that_what_ended_is_reported(
    engine: FakeEngine,
) -> None:
    keeper = make_keeper(cast(Engine, engine), stopped_timeout_s=60)
    async with borrowed(keeper) as old:
        pass
    old.grow_old(0.0)
    async with borrowed(keeper) as new:
        assert (new.id, engine.stopped) == ("s1", ["s0"])
    await keeper.close()


async def test_an_idle_sandbox_is_removed_in_the_background(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    async with borrowed(keeper):
        clock.now_s += 100
        keeper.sweep()
        assert engine.live == {"s0"}  # busy is not idle
    clock.now_s += 59
    keeper.sweep()
    assert keeper.live == 1
    clock.now_s += 1
    engine.may_remove.clear()
    keeper.sweep()
    assert keeper.live == 0
    async with borrowed(keeper) as again:  # does not wait for the removal
        assert again.id == "s1"
    engine.may_remove.set()
    await keeper.settled()
    assert engine.live == {"s1"}


async def test_the_longest_idle_sandbox_makes_room(keeper: SandboxKeeper, engine: FakeEngine, clock: Clock) -> None:
    for thread in ("a", "b", "c"):
        async with borrowed(keeper, thread=thread):
            clock.now_s += 1
    await keeper.settled()
    assert engine.live == {"s1", "s2"}


async def test_when_all_are_busy_the_next_thread_is_refused(keeper: SandboxKeeper) -> None:
    async with borrowed(keeper, thread="a"), borrowed(keeper, thread="b"):
        with pytest.raises(SandboxUnavailable, match="all 2 sandboxes are busy"):
            async with borrowed(keeper, thread="c"):
                pass


async def test_a_failed_creation_takes_no_room_and_the_next_call_tries_again(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.failure = SandboxUnavailable("no")
    with pytest.raises(SandboxUnavailable):
        async with borrowed(keeper):
            pass
    assert keeper.live == 0
    engine.failure = None
    async with borrowed(keeper) as sandbox:
        assert sandbox.id == "s0"


async def test_closing_removes_everything_and_refuses_what_comes_later(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    async with borrowed(keeper, thread="busy"):
        async with borrowed(keeper, thread="idle"):
            pass
        await keeper.close(remove_workspaces=True)
        assert engine.live == set()
        assert engine.workspaces_removed
    with pytest.raises(SandboxUnavailable, match="shutting down"):
        async with borrowed(keeper):
            pass


async def test_a_sandbox_that_comes_up_while_the_keeper_closes_does_not_stay(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.may_create.clear()

    async def ask() -> None:
        async with borrowed(keeper):
            raise AssertionError("it must not be leased")

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await keeper.close()
    engine.may_create.set()
    with pytest.raises(SandboxUnavailable, match="shutting down"):
        await asking
    assert engine.live == set()


async def test_a_sandbox_that_died_during_a_call_is_removed_at_once_and_before_the_next_is_made(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.may_remove.clear()
    async with keeper.acquire(spec()) as sandbox:
        cast(FakeSandbox, sandbox).alive = False

    async def ask() -> str:
        async with keeper.acquire(spec()) as again:
            return again.id

    waiting = asyncio.create_task(ask())
    await asyncio.sleep(0)
    assert len(engine.made) == 1
    engine.may_remove.set()
    assert await waiting == "s1"
    assert engine.live == {"s1"}


async def test_a_tenant_has_its_own_number_of_sandboxes_and_makes_room_among_them(
    engine: FakeEngine, clock: Clock
) -> None:
    keeper = make_keeper(cast(Engine, engine), max_live=4, max_live_per_tenant=2, clock=clock)
    other = SandboxSpec("other", "t", "image")
    async with keeper.acquire(other):
        pass
    for thread in ("a", "b", "c"):
        clock.now_s += 1
        async with keeper.acquire(spec(thread)):
            pass
    await keeper.settled()
    assert engine.live == {"s0", "s2", "s3"}, "the other tenant's, longest idle, must stay"
    async with keeper.acquire(spec("b")), keeper.acquire(spec("c")):
        with pytest.raises(SandboxUnavailable, match="of this tenant"):
            async with keeper.acquire(spec("d")):
                pass
        async with keeper.acquire(other):
            pass
    await keeper.close()


async def test_what_an_earlier_process_left_is_leased_to_its_thread(keeper: SandboxKeeper, engine: FakeEngine) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    assert keeper.live == 1
    async with borrowed(keeper, thread="a") as sandbox:
        assert sandbox.id == "left0"
    async with borrowed(keeper, thread="b") as other:
        assert other.id != "left0"
    assert keeper.live == 2


async def test_what_was_left_takes_room_and_makes_room_like_any_other(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    await keeper.adopt(engine.leave(spec("a"), spec("b")))
    clock.now_s += 1
    async with borrowed(keeper, thread="b") as sandbox:
        assert sandbox.id == "left1"
        async with borrowed(keeper, thread="c"):
            await keeper.settled()
            assert engine.live == {"left1", "s1"}
            with pytest.raises(SandboxUnavailable, match="all 2 sandboxes are busy"):
                async with borrowed(keeper, thread="d"):
                    pass


async def test_what_was_left_past_the_limits_is_removed_at_once_the_oldest_first(
    engine: FakeEngine, clock: Clock
) -> None:
    others = [SandboxSpec("other", thread, "image") for thread in ("x", "y")]
    left = engine.leave(spec("a"), spec("b"), spec("c"), *others)
    keeper = make_keeper(cast("Engine", engine), max_live=3, max_live_per_tenant=2, clock=clock)
    await keeper.adopt(left)
    assert engine.live == {"left0", "left1", "left3"}
    await keeper.close()
    assert engine.live == set()


async def test_what_was_left_goes_when_it_is_idle_for_too_long(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    clock.now_s += 59
    keeper.sweep()
    assert keeper.live == 1
    clock.now_s += 1
    keeper.sweep()
    assert keeper.live == 0
    await keeper.settled()
    assert engine.live == set()


async def test_a_creation_that_fails_leaves_what_was_left_where_it_is(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    engine.failure = SandboxUnavailable("the engine does not answer")
    with pytest.raises(SandboxUnavailable):
        async with borrowed(keeper, thread="a"):
            pass
    engine.failure = None
    async with borrowed(keeper, thread="a") as sandbox:
        assert sandbox.id == "left0"


async def test_closing_removes_unclaimed_sandboxes(keeper: SandboxKeeper, engine: FakeEngine) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    await keeper.close()
    assert engine.live == set()


async def test_closing_with_keep_leaves_the_living_busy_ones_too_and_still_removes_the_dead(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    async with borrowed(keeper, thread="b") as living:
        await keeper.close(keep_sandboxes=True)
    assert engine.live == {"left0", living.id}
    with pytest.raises(SandboxUnavailable, match="shutting down"):
        async with borrowed(keeper, thread="a"):
            pass


async def test_a_sandbox_that_comes_up_while_a_keeper_closes_with_keep_stays_and_is_not_leased(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    engine.may_create.clear()

    async def ask() -> None:
        async with borrowed(keeper, thread="a"):
            raise AssertionError("it must not be leased")

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await keeper.close(keep_sandboxes=True)
    engine.may_create.set()
    with pytest.raises(SandboxUnavailable, match="shutting down"):
        await asking
    assert engine.live == {"left0"}


async def test_looking_lends_what_lives_and_makes_nothing(keeper: SandboxKeeper, engine: FakeEngine) -> None:
    async with keeper.acquire_existing(spec()) as none:
        assert none is None
    assert (keeper.live, engine.made) == (0, [])
    async with borrowed(keeper) as made:
        pass
    async with keeper.acquire_existing(spec(env={"A": "another spec"})) as found:
        assert found is cast(Any, made), "what runs in it is what was asked about"
    made.alive = False
    async with keeper.acquire_existing(spec()) as dead:
        assert dead is None
    await keeper.settled()
    assert (len(engine.made), engine.live) == (1, set())


async def test_looking_finds_what_an_earlier_process_left_and_what_is_only_slow(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    await keeper.adopt(engine.leave(spec("a")))
    async with keeper.acquire_existing(spec("a")) as left:
        assert left is not None
        assert left.id == "left0"
    clock.now_s += 30
    cast(FakeSandbox, left).answers = False
    async with keeper.acquire_existing(spec("a")) as slow:
        assert slow is left


async def test_looking_keeps_a_sandbox_from_being_idle(keeper: SandboxKeeper, engine: FakeEngine, clock: Clock) -> None:
    async with borrowed(keeper):
        pass
    for _ in range(3):
        clock.now_s += 40
        async with keeper.acquire_existing(spec()):
            keeper.sweep()
        keeper.sweep()
    assert (keeper.live, len(engine.made)) == (1, 1)


async def test_nothing_is_leased_for_a_look_once_the_keeper_closes(keeper: SandboxKeeper) -> None:
    await keeper.close()
    with pytest.raises(SandboxUnavailable, match="shutting down"):
        async with keeper.acquire_existing(spec()):
            pass


async def test_a_sandbox_that_another_process_removed_is_replaced_without_an_error(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    async with borrowed(keeper) as first:
        pass
    first.removed = True
    async with borrowed(keeper) as second:
        assert second.id != first.id
    assert (first.users, second.users) == (0, 0)


async def test_one_that_is_removed_again_and_again_is_an_error_in_the_end(
    keeper: SandboxKeeper, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSandbox, "borrow", lambda self: False)
    with pytest.raises(SandboxUnavailable, match="keep removing"):
        async with borrowed(keeper):
            pass


async def test_a_sandbox_of_another_spec_that_others_use_is_replaced_once_they_do_not(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    async with borrowed(keeper) as shared:
        shared.outdated = True
    async with borrowed(keeper) as own:
        assert own is not shared


async def test_what_other_processes_have_counts_and_their_idle_ones_make_room(
    keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.others = {owner_of(spec("x")): True, owner_of(spec("y")): False}
    async with borrowed(keeper, thread="a"):
        assert engine.others == {owner_of(spec("x")): True}
        with pytest.raises(SandboxUnavailable, match="all 2 sandboxes are busy"):
            async with borrowed(keeper, thread="b"):
                pass
    async with borrowed(keeper, thread="b"):
        assert keeper.live == 1, "this process' own idle one goes first"


async def test_a_use_is_counted_from_its_beginning_to_its_end(keeper: SandboxKeeper) -> None:
    async with borrowed(keeper) as sandbox, borrowed(keeper):
        assert (sandbox.users, keeper.users("tenant", "t")) == (2, 2)
    assert (sandbox.users, keeper.users("tenant", "t")) == (0, 0)


async def test_a_look_is_no_use_and_keeps_no_sandbox_from_going_idle(
    keeper: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    assert keeper.at_hand("tenant", "t") is None
    async with borrowed(keeper) as sandbox:
        assert cast(Any, keeper.at_hand("tenant", "t")) is sandbox
    clock.now_s += 9_999
    assert cast(Any, keeper.at_hand("tenant", "t")) is sandbox
    assert keeper.users("tenant", "t") == 0
    keeper.sweep()
    assert keeper.at_hand("tenant", "t") is None
    await keeper.settled()


async def test_what_died_is_not_at_hand(keeper: SandboxKeeper) -> None:
    async with borrowed(keeper) as sandbox:
        sandbox.alive = False
        assert keeper.at_hand("tenant", "t") is None


@pytest.fixture
async def stopping(engine: FakeEngine, clock: Clock) -> AsyncIterator[SandboxKeeper]:
    made = make_keeper(
        cast("Engine", engine), idle_timeout_s=60, max_live=2, stopped_timeout_s=3600, max_stopped=5, clock=clock
    )
    yield made
    await made.close()


async def test_an_idle_sandbox_is_stopped_and_what_is_stopped_is_bounded(
    stopping: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    await stopping.adopt(engine.leave(spec("left")))
    async with borrowed(stopping):
        clock.now_s += 60
        stopping.sweep()
        await stopping.settled()
        assert engine.stopped == ["left0"]
    clock.now_s += 60
    stopping.sweep()
    await stopping.settled()
    assert (engine.stopped, stopping.live) == (["left0", "s0"], 0)
    assert engine.trimmed == [(3600, 5)] * 2


async def test_an_evicted_sandbox_is_stopped_and_a_dead_one_removed(
    stopping: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    for thread in ("a", "b", "c"):
        async with borrowed(stopping, thread=thread) as last:
            clock.now_s += 1
    await stopping.settled()
    assert engine.stopped == ["s0"]
    last.alive = False
    clock.now_s += 60
    stopping.sweep()
    await stopping.settled()
    assert (engine.stopped, engine.live) == (["s0", "s1"], set())


async def test_a_call_while_it_is_being_stopped_waits_for_no_end_of_that_here(
    stopping: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    async with borrowed(stopping):
        pass
    clock.now_s += 60
    engine.may_remove.clear()
    stopping.sweep()
    async with borrowed(stopping) as again:  # the engine has the two one after the other
        assert again.id == "s1"
    engine.may_remove.set()


async def test_what_other_processes_have_is_stopped_for_room_too(stopping: SandboxKeeper, engine: FakeEngine) -> None:
    engine.others = {owner_of(spec("x")): True, owner_of(spec("y")): False}
    async with borrowed(stopping, thread="a"):
        assert (engine.others, engine.stopped) == ({owner_of(spec("x")): True}, [owner_of(spec("y"))[0]])


async def test_the_tenant_with_most_makes_room_and_none_with_fewer_than_the_caller(
    engine: FakeEngine, clock: Clock
) -> None:
    keeper = make_keeper(cast("Engine", engine), max_live=4, max_live_per_tenant=4, stopped_timeout_s=3600, clock=clock)

    async def use(tenant: str, thread: str) -> None:
        async with keeper.acquire(SandboxSpec(tenant, thread, "image")):
            clock.now_s += 1

    await use("modest", "1")  # s0, and idle for longest
    for thread in ("1", "2", "3"):
        await use("greedy", thread)
    await use("greedy", "4")
    await keeper.settled()
    assert engine.stopped == ["s1"], "its own, though another's is idle for longer"
    await use("modest", "2")
    await keeper.settled()
    assert engine.stopped == ["s1", "s2"], "of the tenant with the most"
    await use("third", "1")
    await keeper.settled()
    assert len(engine.stopped) == 3
    assert engine.stopped[2] in ("s0", "s3"), "both have two: the one or the other"
    await keeper.close()


async def test_states_are_counted_and_the_end_of_an_idle_one_is_known_ahead(
    stopping: SandboxKeeper, engine: FakeEngine
) -> None:
    engine.may_create.clear()

    async def ask() -> None:
        async with borrowed(stopping):
            pass

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    assert stopping.states() == {"creating": 1, "running": 0, "idle_stopped": 7}
    assert stopping.living() == []
    engine.may_create.set()
    await asking
    assert stopping.states() == {"creating": 0, "running": 1, "idle_stopped": 7}
    assert [sandbox.id for sandbox in stopping.living()] == ["s0"]
    idle = ListedSandbox("s", "t", "image", "runc", 1.0, since_s=100.0)
    assert stopping.ends_s(idle, spec()) == 160.0
    assert stopping.ends_s(idle, spec(idle_timeout_s=5.0)) == 105.0
    assert stopping.ends_s(replace(idle, since_s=None), spec()) is None
    assert stopping.ends_s(replace(idle, state="idle_stopped"), spec()) == 3700.0


async def test_stopping_one_that_is_asked_for_is_bounded_like_any_and_removes_it_where_none_is_to_stay(
    stopping: SandboxKeeper, keeper: SandboxKeeper, engine: FakeEngine
) -> None:
    stopped = await stopping.stop("tenant", "t")
    assert stopped is not None
    assert stopped.state == "idle_stopped"
    await stopping.settled()
    assert engine.trimmed == [(3600, 5)]
    removed = await keeper.stop("tenant", "t")
    assert removed is not None
    assert removed.state == "removed"


async def test_closing_removes_and_stops_nothing(stopping: SandboxKeeper, engine: FakeEngine) -> None:
    async with borrowed(stopping):
        pass
    await stopping.close()
    assert (engine.stopped, engine.live) == ([], set())


async def test_a_tenant_s_policy_says_how_long_its_sandboxes_may_be_idle(
    stopping: SandboxKeeper, engine: FakeEngine, clock: Clock
) -> None:
    async with borrowed(stopping, thread="short", idle_timeout_s=10.0), borrowed(stopping, thread="as all") as other:
        pass
    clock.now_s += 10
    stopping.sweep()
    await stopping.settled()
    assert (len(engine.stopped), engine.live) == (1, {other.id})
    async with borrowed(stopping, thread="as all", idle_timeout_s=9_999.0) as same:
        assert same is other, "it is no reason to replace it"
    clock.now_s += 9_998
    stopping.sweep()
    assert stopping.live == 1


async def test_a_shorter_idle_time_than_any_is_looked_after_at_once(engine: FakeEngine) -> None:
    keeper = make_keeper(cast("Engine", engine), idle_timeout_s=9_999, stopped_timeout_s=3600)
    async with keeper.acquire(spec("a")):
        pass
    async with keeper.acquire(spec("b", idle_timeout_s=0.02)):
        pass
    async with asyncio.timeout(30):
        while not engine.trimmed:
            await asyncio.sleep(0.005)
    assert engine.stopped == ["s1"]
    await keeper.close()


async def test_a_look_that_goes_wrong_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    looked = asyncio.Event()
    tries = 0

    async def full() -> Sequence[LeftSandbox]:
        nonlocal tries
        tries += 1
        if tries > 1:
            looked.set()
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(engine, "reconcile", full)
    keeper = make_keeper(cast("Engine", engine), idle_timeout_s=0.02, max_live=2, clock=time.monotonic)
    async with borrowed(keeper), asyncio.timeout(20):
        await looked.wait()
    await keeper.close()


async def test_who_looks_after_what_is_past_its_lifetime_does_not_wait_with_those_who_want_a_new_one(
    keeper: SandboxKeeper,
) -> None:
    async with borrowed(keeper) as first:
        first.grow_old(1.0)
        waiting = asyncio.create_task(_id_of_next(keeper))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1), keeper.acquire_existing(spec()) as looked_at:
            assert looked_at is cast("Sandbox", first)
        assert not waiting.done()
    assert await waiting != first.id


async def _id_of_next(keeper: SandboxKeeper) -> str:
    async with borrowed(keeper) as sandbox:
        return sandbox.id


async def test_a_look_at_what_others_left_has_ended_when_the_keeper_is_closed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, ended = asyncio.Event(), asyncio.Event()

    async def look() -> Sequence[LeftSandbox]:
        looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # it lets go of the files that it had locked
            ended.set()
        return []

    monkeypatch.setattr(engine, "reconcile", look)
    keeper = make_keeper(cast("Engine", engine), idle_timeout_s=0.02, max_live=2, clock=time.monotonic)
    await keeper.adopt([])
    await looking.wait()
    await keeper.close()
    assert ended.is_set()
