"""SandboxUsage over an engine and a sandbox that are made up, and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sandboxes import sandbox_usage
from gateway.sandboxes.sandbox_usage import Disk, SandboxUsage
from sandbox.errors import DaemonLost, EngineUnavailable, SandboxUnavailable
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.usage import DiskCount, Health, Usage


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeEngine:
    """Two sandboxes that use half a processor, and one that is stopped."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.gone: set[str] = set()
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.began_s = clock.now_s - 10

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        assert tenant == "t"
        running = [ListedSandbox(f"s{name}", name, "image", "runc", 1.0) for name in ("a", "b")]
        return [*running, ListedSandbox("sc", "c", "image", "runc", 1.0, "idle_stopped", 2.0)]

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        self.asked.append(sandbox.id)
        if self.error is not None:
            raise self.error
        return None if sandbox.id in self.gone else Usage(cpu_s=(self.clock.now_s - self.began_s) / 2, pids=3)


class FakeSandbox:
    """One of thread a, whose files take 8 KiB, and those in /tmp 4 KiB."""

    id = "sa"
    spec = SandboxSpec("t", "a", "image")
    posture = SimpleNamespace(cpu_limit_millis=1500, memory_limit_bytes=0, pids_limit=0)

    def __init__(self) -> None:
        self.outdated = False
        self.counts = 0
        self.error: Exception | None = None
        self.workspace: DiskCount | None = DiskCount(8192, 5000, partial=False)

    async def health(self, *, count_disk: bool = False) -> Health:
        assert count_disk
        self.counts += 1
        if self.error is not None:
            raise self.error
        return Health(1.0, 1, 0, 0, 0, 0, 0, self.workspace, DiskCount(4096, 1, partial=False))


class FakeKeeper:
    def __init__(self, sandbox: FakeSandbox) -> None:
        self.sandbox: FakeSandbox | None = sandbox

    def at_hand(self, tenant: str, thread: str) -> FakeSandbox | None:
        return self.sandbox if thread == "a" else None

    def users(self, tenant: str, thread: str) -> int:
        return 2 if thread == "a" else 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> FakeEngine:
    return FakeEngine(clock)


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
def usage(engine: FakeEngine, sandbox: FakeSandbox, clock: Clock) -> SandboxUsage:
    return SandboxUsage(cast(Any, engine), cast(Any, FakeKeeper(sandbox)), clock)


async def test_a_share_is_reported_from_the_second_reading_on_and_not_across_a_long_pause(
    usage: SandboxUsage, clock: Clock
) -> None:
    (first,) = await usage.read("t", "a")
    assert (first.usage.cpu_s, first.cpus) == (5.0, None)
    clock.now_s += 2
    (second,) = await usage.read("t", "a")
    assert second.cpus == pytest.approx(0.5)
    clock.now_s += 61
    (late,) = await usage.read("t", "a")
    assert late.cpus is None


async def test_a_share_is_not_reported_across_a_restart_of_the_sandbox(
    usage: SandboxUsage, engine: FakeEngine, clock: Clock
) -> None:
    await usage.read("t", "a")
    clock.now_s += 2
    engine.began_s = clock.now_s - 1
    (again,) = await usage.read("t", "a")
    assert (again.usage.cpu_s, again.cpus) == (0.5, None)


async def test_those_who_ask_at_the_same_time_share_a_reading(
    usage: SandboxUsage, engine: FakeEngine, sandbox: FakeSandbox, clock: Clock
) -> None:
    await asyncio.gather(*(usage.read("t") for _ in range(20)))
    assert sorted(engine.asked) == ["sa", "sb"]
    clock.now_s += 1
    await usage.read("t")
    assert len(engine.asked) == 4
    assert sandbox.counts == 1
    clock.now_s += 10
    await usage.read("t")
    assert sandbox.counts == 2


async def test_one_tenant_s_readings_leave_the_engine_to_another_s(
    usage: SandboxUsage, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, read = asyncio.Event(), engine.usage

    async def listed(tenant: str) -> Sequence[ListedSandbox]:
        number = 6 if tenant == "many" else 1
        return [ListedSandbox(f"{tenant}{one}", f"x{one}", "image", "runc", 1.0) for one in range(number)]

    async def slow(sandbox: ListedSandbox) -> Usage | None:
        if sandbox.id.startswith("many"):
            await going_on.wait()
        return await read(sandbox)

    monkeypatch.setattr(engine, "listed", listed)
    monkeypatch.setattr(engine, "usage", slow)
    reading = asyncio.create_task(usage.read("many"))
    for _ in range(10):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert [one.sandbox.id for one in await usage.read("b")] == ["b0"]
    assert not reading.done()
    going_on.set()
    assert len(await reading) == 6


async def test_files_take_what_the_daemon_counts_where_the_sandbox_is_at_hand(
    usage: SandboxUsage, sandbox: FakeSandbox
) -> None:
    here, elsewhere = await usage.read("t")
    limits = sandbox.spec.limits
    assert here.workspace == Disk(8192, partial=False, limit_bytes=limits.workspace_bytes)
    assert here.tmp == Disk(4096, partial=False, limit_bytes=limits.tmp_bytes)
    assert (here.cpus_limit, here.calls) == (1.5, 2)
    assert (elsewhere.workspace, elsewhere.tmp, elsewhere.cpus_limit) == (None, None, None)
    assert elsewhere.usage.pids == 3


@pytest.mark.parametrize(
    "count, reported", [(None, None), (DiskCount(10, 1, partial=True), Disk(10, partial=True, limit_bytes=None))]
)
async def test_what_could_not_be_counted_is_unknown_or_partial_and_limits_of_another_make_are_omitted(
    usage: SandboxUsage, sandbox: FakeSandbox, count: DiskCount | None, reported: Disk | None
) -> None:
    sandbox.workspace, sandbox.outdated = count, True
    (found,) = await usage.read("t", "a")
    assert (found.workspace, found.tmp) == (reported, Disk(4096, partial=False, limit_bytes=None))


@pytest.mark.parametrize("error", [DaemonLost("gone"), TimeoutError()])
async def test_what_the_daemon_does_not_report_is_unknown(
    usage: SandboxUsage, sandbox: FakeSandbox, error: Exception
) -> None:
    sandbox.error = error
    (found,) = await usage.read("t", "a")
    assert (found.workspace, found.tmp) == (None, None)
    assert found.usage.pids == 3


async def test_the_daemon_is_asked_before_the_engine(
    usage: SandboxUsage, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reported(sandbox: FakeSandbox) -> Usage:
        return Usage(pids=9)

    monkeypatch.setattr(sandbox_usage, "read_usage", reported)
    assert [one.usage.pids for one in await usage.read("t")] == [9, 3]
    assert engine.asked == ["sb"]


async def test_a_sandbox_that_goes_meanwhile_is_left_out(usage: SandboxUsage, engine: FakeEngine) -> None:
    engine.gone = {"sa"}
    assert [one.sandbox.id for one in await usage.read("t")] == ["sb"]


async def test_an_engine_that_refuses_to_count_leaves_it_unknown_and_one_that_is_gone_is_an_error(
    usage: SandboxUsage, engine: FakeEngine, clock: Clock
) -> None:
    engine.error = SandboxUnavailable("403: the proxy lets nobody ask")
    (found,) = await usage.read("t", "b")
    assert found.usage == Usage()
    clock.now_s += 1
    engine.error = EngineUnavailable("gone")
    with pytest.raises(EngineUnavailable):
        await usage.read("t", "b")


async def test_watching_ends_after_its_readings_or_with_the_gateway(usage: SandboxUsage) -> None:
    found = [reading async for reading in usage.watch("t", None, interval_s=0.001, readings=3)]
    assert [len(reading) for reading in found] == [2, 2, 2]
    reported = 0
    async for _ in usage.watch("t", None, interval_s=60, readings=0):
        reported += 1
        usage.close()
    assert reported == 1
