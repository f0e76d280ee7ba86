"""Snapshots that an engine keeps as copies, over one that fails and loses them, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import structlog

from gateway.errors import Internal, QuotaExceeded, TooLarge, Unavailable
from gateway.snapshots.snapshots import Snapshots
from gateway.snapshots.volume_copies import Copies
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import STEP, SnapshotStore
from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.engines.engine import KeptCopy, VolumeCopy
from sandbox.errors import EngineUnavailable, SandboxUnavailable
from sandbox.sandbox import SandboxSpec, digest
from tests.unit.gateway.snapshots.test_snapshots import ACME, Harness, Killed, LosingStore, harness, tenant

__all__ = ["harness"]
_GIB = 2**30
_COUNTS = WorkspaceCounts(entries=3, files=2, size_bytes=7, skipped=1, stripped=0)


@dataclass
class KeepingEngine:
    """Satisfies VolumeCopies; the copies are their names."""

    counts: WorkspaceCounts = _COUNTS
    stored_bytes: int = 2 * _GIB
    rounded_up_to_bytes: int = 0
    broken: bool = False
    slow_to_remove: bool = False
    kept: list[KeptCopy] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)

    def copies_of(self, spec: SandboxSpec) -> bool:
        return spec.tenant != "other"

    async def volume_bytes(self, spec: SandboxSpec) -> int:
        return max(spec.limits.workspace_bytes, self.rounded_up_to_bytes)

    async def copy_workspace(
        self, spec: SandboxSpec, snapshot: str, check: Callable[[WorkspaceCounts], None]
    ) -> VolumeCopy | None:
        if spec.thread == "empty":
            return None
        check(self.counts)
        kept = KeptCopy(digest(spec.tenant), snapshot, f"copy-{snapshot}", "uid")
        self.kept.append(kept)
        if self.broken:
            raise SandboxUnavailable("the driver broke")
        return VolumeCopy(kept.name, kept.uid, self.stored_bytes, self.counts)

    async def restore_copy(self, spec: SandboxSpec, copy: VolumeCopy) -> bool:
        if copy.name not in {one.name for one in self.kept if one.tenant == digest(spec.tenant)}:
            return False
        self.restored.append(copy.name)
        return True

    async def kept_copies(self, tenant: str = "") -> Sequence[KeptCopy]:
        return [one for one in self.kept if tenant in ("", one.tenant)]

    async def remove_copy(self, kept: KeptCopy) -> None:
        if not self.slow_to_remove:
            self.kept.remove(kept)


@pytest.fixture
def engine() -> KeepingEngine:
    return KeepingEngine()


@pytest.fixture
async def snapshots(harness: Harness, engine: KeepingEngine) -> Snapshots:
    await harness.threads.thread(ACME.name, "t")
    return keeping(harness, engine)


def keeping(harness: Harness, engine: KeepingEngine | None, store: type[SnapshotStore] = SnapshotStore) -> Snapshots:
    plain = harness.with_store(store(harness.database))
    return replace(plain, copies=Copies(engine))


async def test_a_copy_is_a_snapshot_with_the_counts_of_its_files(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    kept = await snapshots.create(ACME, "t", comment="")
    assert (kept.files, kept.size_bytes, kept.skipped) == (2, 7, 1)
    assert kept.stored_bytes > engine.stored_bytes
    assert sorted(path.suffix for path in harness.kept()) == [".metadata", ".volume"]
    await snapshots.restore(ACME, kept.id, "u")
    assert engine.restored == [f"copy-{kept.id}"]
    (described,) = [path for path in harness.kept() if path.suffix == ".volume"]
    described.write_text("{}")
    with pytest.raises(Internal):
        await snapshots.restore(ACME, kept.id, "u")
    await snapshots.delete(ACME, kept.id)
    assert (engine.kept, harness.kept()) == ([], [])


async def test_a_thread_without_files_has_a_snapshot_all_the_same_and_so_has_a_tenant_without_copies(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    await harness.threads.thread(ACME.name, "empty")
    other = tenant("other")
    await harness.write(other, "t", a=b"1")
    for whose, thread in ((ACME, "empty"), (other, "t")):
        kept = await snapshots.create(whose, thread, comment="")
        await snapshots.restore(whose, kept.id, "u")
    assert await harness.files(other, "u") == {"a": b"1"}
    assert engine.kept == []


async def test_files_of_which_the_engine_makes_no_copy_are_stored_here(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    await harness.write(ACME, "empty", a=b"1")
    kept = await snapshots.create(ACME, "empty", comment="")
    await snapshots.restore(ACME, kept.id, "u")
    assert await harness.files(ACME, "u") == {"a": b"1"}
    assert engine.kept == []


async def test_what_fails_or_is_too_much_leaves_no_copy(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    engine.broken = True
    with pytest.raises(SandboxUnavailable, match="the driver broke"):
        await snapshots.create(ACME, "t", comment="")
    engine.broken, engine.counts = False, replace(_COUNTS, entries=250_000)
    with pytest.raises(TooLarge):
        await snapshots.create(ACME, "t", comment="")
    engine.counts, engine.stored_bytes = _COUNTS, 11 * _GIB
    with pytest.raises(TooLarge):
        await snapshots.create(ACME, "t", comment="")
    assert (engine.kept, harness.kept()) == ([], [])


@pytest.mark.parametrize(
    "sections, of_engine",
    [
        ({"sandbox": {"workspace_mib": 10 * 1024}}, {}),
        ({"sandbox": {"workspace_mib": 20 * 1024}, "quotas": {"snapshots": 2}}, {}),
        ({}, {"stored_bytes": 11 * _GIB}),
        (
            {"sandbox": {"workspace_mib": 9 * 1024}, "quotas": {"snapshots": 2}},
            {"stored_bytes": 16 * _GIB, "rounded_up_to_bytes": 16 * _GIB},
        ),
    ],
    ids=["a volume of the whole quota", "also by their number", "as its driver says", "a volume that is rounded up"],
)
async def test_what_the_whole_quota_has_no_room_for_removes_no_automatic_snapshot(
    harness: Harness,
    snapshots: Snapshots,
    engine: KeepingEngine,
    sections: dict[str, object],
    of_engine: dict[str, int],
) -> None:
    step = KeptStep(await harness.threads.thread(ACME.name, "t"), 0)
    kept = [await snapshots.keep_step(ACME, "r1", number, step, STEP) for number in (1, 2)]
    vars(engine).update(of_engine)
    fix = r"raise quotas\.snapshot_bytes, or lower sandbox\.workspace_mib"
    with pytest.raises(TooLarge, match=fix):
        await snapshots.create(tenant(**sections), "t", comment="")
    assert {one.snapshot for one in engine.kept} == {one.id for one in kept}


async def test_a_copy_counts_in_the_quota_and_still_does_after_a_crash(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    few = tenant(quotas={"snapshot_bytes": 7 * _GIB})
    kept = [await snapshots.create(few, "t", comment="") for _ in range(3)]
    with pytest.raises(Killed):
        await keeping(harness, engine, LosingStore).create(ACME, "t", comment="")
    for path in (harness.directory / "snapshots").rglob("used"):
        path.unlink()
    with pytest.raises(QuotaExceeded):
        await snapshots.create(few, "t", comment="")
    assert {one.snapshot for one in engine.kept} == {one.id for one in kept}
    await snapshots.delete(few, kept[0].id)
    await snapshots.create(few, "t", comment="")


async def test_a_sweep_removes_copies_without_a_snapshot_also_of_tenants_that_have_none(
    harness: Harness, snapshots: Snapshots, engine: KeepingEngine
) -> None:
    kept = await snapshots.create(ACME, "t", comment="")
    engine.kept += [KeptCopy(digest(name), "snap_lost", f"lost-{name}", "uid") for name in ("acme", "gone")]
    await snapshots.sweep()
    assert [one.snapshot for one in engine.kept] == [kept.id]


async def test_nothing_is_removed_once_the_lock_may_be_lost(engine: KeepingEngine) -> None:
    engine.kept = [KeptCopy(digest("acme"), "snap_new", "new", "uid")]

    def lost() -> None:
        raise Unavailable("the lock on the tenant's snapshots was not renewed in time")

    await Copies(engine).sweep(digest("acme"), (), lost)
    assert engine.kept


async def test_an_engine_that_does_not_answer_delays_no_deletion_and_the_next_one_removes_the_copy(
    snapshots: Snapshots, engine: KeepingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await snapshots.create(ACME, "t", comment="") for _ in range(2)]
    with monkeypatch.context() as context:

        async def unavailable(tenant: str = "") -> Sequence[KeptCopy]:
            raise EngineUnavailable(tenant)

        context.setattr(engine, "kept_copies", unavailable)
        await snapshots.delete(ACME, first.id)
        await snapshots.sweep()
    assert len(engine.kept) == 2
    await snapshots.delete(ACME, second.id)
    assert engine.kept == []


async def test_an_erasure_waits_until_copies_are_gone_and_fails_while_they_are_not(
    snapshots: Snapshots, engine: KeepingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.snapshots.volume_copies._GONE_S", 0.1)
    monkeypatch.setattr("gateway.snapshots.volume_copies._POLL_S", 0.01)
    await snapshots.create(ACME, "t", comment="")
    engine.slow_to_remove = True
    with pytest.raises(SandboxUnavailable, match="has not removed 1 copies"):
        await snapshots.erase(ACME.name)
    assert (await snapshots.left_of(ACME.name))["snapshot_files"] == 3
    monkeypatch.setattr("gateway.snapshots.volume_copies._GONE_S", 30)
    erasing = asyncio.create_task(snapshots.erase(ACME.name))
    await asyncio.sleep(0)
    engine.slow_to_remove = False
    await erasing
    assert await snapshots.left_of(ACME.name) == {"snapshot_files": 0}


async def test_a_gateway_without_copies_neither_restores_nor_deletes_nor_erases_them(
    harness: Harness, snapshots: Snapshots
) -> None:
    kept = await snapshots.create(ACME, "t", comment="")
    without = keeping(harness, None)
    for refused in (without.restore(ACME, kept.id, "t"), without.delete(ACME, kept.id), without.erase(ACME.name)):
        with pytest.raises(Unavailable, match=r"sandbox\.kubernetes\.snapshot_class"):
            await refused
    assert await without.get(ACME, kept.id) == kept
    assert len(harness.kept()) == 2


async def test_without_the_class_automatic_snapshots_are_trimmed_except_copies_which_is_logged_once(
    harness: Harness, snapshots: Snapshots
) -> None:
    two = tenant(sandbox={"snapshots": "step", "snapshots_kept": 2})
    step = KeptStep(await harness.threads.thread(ACME.name, "t"), 0)
    copies = [await snapshots.keep_step(two, "r1", number, step, STEP) for number in (1, 2)]
    without = keeping(harness, None)
    with structlog.testing.capture_logs() as logged:
        later = [await without.keep_step(two, "r1", number, step, STEP) for number in (3, 4, 5, 6)]
    page, _ = await without.page(two, thread="", size=0, token="")
    assert {one.id for one in page} == {one.id for one in (*copies, *later[-2:])}
    (warned,) = [line for line in logged if line["log_level"] == "warning"]
    assert (warned["tenant"], warned["copies"]) == ("acme", 1)
    assert "sandbox.kubernetes.snapshot_class" in warned["event"]


@pytest.mark.parametrize("quota", [{"snapshots": 2}, {"snapshot_bytes": 4 * _GIB}])
async def test_without_the_class_a_quota_that_copies_fill_is_what_the_error_names(
    harness: Harness, snapshots: Snapshots, quota: dict[str, int]
) -> None:
    step = KeptStep(await harness.threads.thread(ACME.name, "t"), 0)
    copies = [await snapshots.keep_step(ACME, "r1", number, step, STEP) for number in (1, 2)]
    full = tenant(quotas=quota)
    with pytest.raises(QuotaExceeded):
        await keeping(harness, None).create(full, "t", comment="")
    page, _ = await snapshots.page(ACME, thread="", size=0, token="")
    assert {one.id for one in page} == {one.id for one in copies}
