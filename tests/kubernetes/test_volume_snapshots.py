"""Copies of volumes by the engine over the cluster for tests: what is in them, what comes back, and what fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.engines.engine import VolumeCopies, VolumeCopy
from sandbox.engines.kubernetes.copied_volumes import bytes_of
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.remains import Remains
from sandbox.engines.kubernetes.resources import VERBS
from sandbox.engines.workspace_archive import Contents, WorkspaceEntry
from sandbox.errors import EngineUnavailable, SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.sandbox import SandboxSpec, digest, owner_of
from tests.conformance.kubernetes_engines import ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster, storage_class
from tests.kubernetes.sandboxes import MakeEngine, cluster, engine, lose, make_engine, named, spec, until
from tests.kubernetes.store import copied as in_store

__all__ = ["cluster", "engine", "make_engine"]  # fixtures

_TREE = (
    "mkdir -p d/inner closed empty && echo run > d/x && chmod 750 d && chmod 4755 d/x && ln -s ../d/x d/way && "
    "ln d/x twice && mkfifo pipe && head -c 3000000 /dev/urandom > large && truncate -s 5000000 sparse && "
    "touch -d @1000000000 large && echo y > closed/y && chmod 0 closed/y closed && chmod 2775 d/inner && "
    "mkdir -p .airlock && echo z > .airlock/z && echo umlaut > 'ü n'"
)


@pytest.fixture
def apart(request: pytest.FixtureRequest) -> bool:
    """Whether each tenant has a namespace."""
    return bool(getattr(request, "param", False))


@pytest.fixture
def place(cluster: Cluster, apart: bool, tmp_path: Path) -> ClusterSite:
    if cluster.real:
        pytest.skip("it needs a driver that takes snapshots")
    cluster.call(cluster.faults.clear)
    return ClusterSite(cluster, tmp_path, namespace_per_tenant=apart, snapshot_class="standard")


@pytest_asyncio.fixture
async def copies(engine: KubernetesEngine) -> AsyncIterator[VolumeCopies]:
    """The copies of an engine; at the end all of them are removed."""
    assert engine.copies is not None
    yield engine.copies
    if not engine._closed:
        await removed(engine.copies)


async def removed(copies: VolumeCopies) -> None:
    for kept in await copies.kept_copies():
        await copies.remove_copy(kept)
    assert await copies.kept_copies() == []


def unchecked(counts: WorkspaceCounts) -> None:
    assert counts.entries


async def copied(copies: VolumeCopies, of: SandboxSpec, snapshot: str = "snap_1") -> VolumeCopy:
    made = await copies.copy_workspace(of, snapshot, unchecked)
    assert made is not None
    return made


def whole(contents: Contents) -> dict[str, tuple[WorkspaceEntry, bytes]]:
    found = {entry.path: (entry, b"".join(content)) for entry, content in contents}
    # Only a file's time is one that is restored.
    return {
        path: (
            entry if entry.kind == "file" else WorkspaceEntry(path, entry.kind, entry.mode, 0, 0, entry.target),
            data,
        )
        for path, (entry, data) in found.items()
    }


async def test_what_a_copy_restores_differs_in_nothing_from_what_an_archive_does(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    source = await engine.create(named("source"))
    assert (await run(source.shell, _TREE)).exit_code == 0
    copy = await copied(copies, named("source"))
    saved = await engine.save_workspace(named("source"), whole)
    assert saved is not None
    kept = [(entry, data) for entry, data in saved.values() if entry.kind != "special"]
    assert copy.counts == WorkspaceCounts(
        entries=len(kept),
        files=sum(entry.kind in ("file", "hardlink") for entry, _ in kept),
        size_bytes=sum(entry.size_bytes for entry, _ in kept),
        skipped=1,
        stripped=len([entry for entry, _ in kept if entry.mode & ~0o777 and entry.kind != "hardlink"]) + 1,
    )
    assert copy.stored_bytes == named("source").limits.workspace_bytes
    await run(source.shell, "echo later > d/x; rm large")

    await engine.replace_workspace(named("by-archive"), lambda: ((entry, iter((data,))) for entry, data in kept))
    target = await engine.create(named("by-copy"))
    await target.files.write("/workspace/old", b"old")
    assert await copies.restore_copy(named("by-copy"), copy)
    assert not target.borrow(), "it was made for the old files"
    archived = await engine.save_workspace(named("by-archive"), whole)
    restored = await engine.save_workspace(named("by-copy"), whole)
    assert restored == archived
    assert restored is not None
    assert restored["d/x"][0].mode == 0o755
    again = await engine.create(named("by-copy"))
    assert text(await run(again.shell, "cat d/x twice; echo more >> d/x && cat twice; stat -c %a d/inner closed")) == (
        "run\nrun\nrun\nmore\n775\n0\n"
    )
    assert await engine.save_workspace(named("source"), lambda found: "large" in whole(found)) is False


async def test_a_thread_without_a_sandbox_is_copied_and_restored_and_no_carrier_stays(
    engine: KubernetesEngine, copies: VolumeCopies, place: ClusterSite
) -> None:
    assert await copies.copy_workspace(named("never"), "snap_0", unchecked) is None
    sandbox = await engine.create(named("t1"))
    await sandbox.files.write("/workspace/a", b"1")
    assert await engine.stop_idle(sandbox.id)
    copy = await copied(copies, named("t1"))
    await engine.remove(sandbox.id)
    assert await copies.restore_copy(named("t1"), copy)
    assert await engine.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"1"
    await until(lambda: sorted(line.split()[0] for line in place.left()) == ["Lease", "VolumeSnapshot", "workspace"])
    remaining = await Remains(engine._parts.requests, engine._parts.site).found()
    assert [one.resource.plural for one in remaining][:2] == ["persistentvolumeclaims", "volumesnapshots"]
    assert await engine.remove_workspace("tenant-a", "t1")
    assert await copies.restore_copy(named("t2"), copy), "it outlives its thread"
    assert await engine.save_workspace(named("t2"), lambda found: whole(found)["a"][1]) == b"1"


@pytest.mark.parametrize("apart", [False, True], indirect=True, ids=["one namespace", "namespace per tenant"])
async def test_a_copy_is_its_tenant_s_alone_and_one_that_is_gone_changes_nothing(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    theirs = named("t1", tenant="tenant-b")
    for one in (named("t1"), theirs):
        sandbox = await engine.create(one)
        await sandbox.files.write("/workspace/a", one.tenant.encode())
    copy = await copied(copies, named("t1"))
    assert [(one.tenant, one.snapshot) for one in await copies.kept_copies()] == [(digest("tenant-a"), "snap_1")]
    assert await copies.kept_copies(digest("tenant-b")) == []
    assert not await copies.restore_copy(theirs, copy)
    assert not await copies.restore_copy(named("t1"), VolumeCopy(copy.name, "other", 1, copy.counts))
    await removed(copies)
    assert not await copies.restore_copy(named("t1"), copy)
    assert await engine.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"tenant-a"
    await engine.remove_all_of("tenant-b")


async def test_a_volume_has_the_size_that_its_driver_gave_it(
    engine: KubernetesEngine, copies: VolumeCopies, place: ClusterSite
) -> None:
    asked = spec().limits.workspace_bytes
    assert await copies.volume_bytes(named("t1")) == asked, "as a new one is asked for"
    await engine.create(named("t1"))
    assert await copies.volume_bytes(named("t1")) == asked
    (claim,) = place.cluster.objects(kinds.CLAIM, place.namespace)
    larger = in_store(claim)
    larger["status"]["capacity"]["storage"] = "64Gi"
    place.cluster.call(place.cluster.store.put, kinds.CLAIM, larger)
    assert await copies.volume_bytes(named("t1")) == 64 * 2**30


async def test_a_busy_thread_is_not_restored_and_what_is_too_large_is_not_copied(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    sandbox = await engine.create(named("t1"))
    copy = await copied(copies, named("t1"))
    assert sandbox.borrow()
    with pytest.raises(SandboxBusy):
        await copies.restore_copy(named("t1"), copy)
    sandbox.give_back()

    def refuse(counts: WorkspaceCounts) -> None:
        raise ValueError(counts.entries)

    with pytest.raises(ValueError, match="1"):
        await copies.copy_workspace(named("t1"), "snap_2", refuse)
    assert [one.snapshot for one in await copies.kept_copies()] == ["snap_1"]


async def test_no_copy_is_made_under_gvisor_whose_syncfs_does_not_write_all_files(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    assert copies.copies_of(named("t1"))
    assert not copies.copies_of(replace(named("t1"), runtime="runsc"))
    await engine.create(named("t1"))
    async with engine._parts.gates.entered(owner_of(named("t1"))) as gate:
        assert gate is not None
        # As after a change of the policy, while a sandbox from before it runs.
        await gate.write(replace(gate.record, runtime="runsc"))
    assert await copies.copy_workspace(named("t1"), "snap_1", unchecked) is None
    assert await copies.kept_copies() == []
    assert await engine.save_workspace(named("t1"), lambda found: set(whole(found))) == {""}


async def test_a_volume_that_has_nothing_of_the_copy_does_not_replace_the_files(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    place.cluster.apply({**storage_class("ignorant", default=False), "parameters": {"sources": "ignored"}})
    engine = make_engine(site={"storage_class": "ignorant"})
    assert engine.copies is not None
    for thread, command in (("files", "echo then > a"), ("directories", "mkdir -p a/b")):
        sandbox = await engine.create(named(thread))
        assert (await run(sandbox.shell, command)).exit_code == 0
        copy = await copied(engine.copies, named(thread), f"snap_{thread}")
        with pytest.raises(SandboxUnavailable, match=r"has 0 of the copy's \d files .* supports dataSource"):
            await engine.copies.restore_copy(named(thread), copy)
        assert await engine.save_workspace(named(thread), lambda found: "a" in whole(found))
    empty = await engine.create(named("empty"))
    copy = await copied(engine.copies, named("empty"))
    await empty.files.write("/workspace/a", b"later")
    assert await engine.copies.restore_copy(named("empty"), copy), "it has nothing to lack"
    assert await engine.save_workspace(named("empty"), lambda found: set(whole(found))) == {""}
    await removed(engine.copies)


async def test_a_copy_that_lacks_what_was_removed_after_it_was_counted_is_restored(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    sandbox = await engine.create(named("t1"))
    assert (await run(sandbox.shell, "echo 1 > a; touch b c d")).exit_code == 0
    copy = await copied(copies, named("t1"))
    more = replace(copy, counts=replace(copy.counts, entries=100, files=99))
    assert await copies.restore_copy(named("t1"), more)
    assert await engine.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"1\n"


async def test_a_copy_that_lacks_some_of_the_files_that_nothing_changed_meanwhile_is_not_restored(
    engine: KubernetesEngine, copies: VolumeCopies
) -> None:
    sandbox = await engine.create(named("t1"))
    assert (await run(sandbox.shell, "echo 1 > a; mkdir -p b/c; ln a b/d; ln -s a e; mkfifo f")).exit_code == 0
    assert await engine.stop_idle(sandbox.id)
    copy = await copied(copies, named("t1"))
    assert copy.at_rest
    counts = copy.counts
    for more in (
        replace(counts, entries=counts.entries + 1),
        replace(counts, files=counts.files + 1),
        replace(counts, size_bytes=counts.size_bytes + 1),
    ):
        with pytest.raises(SandboxUnavailable, match=r"files \(2 of \d bytes\), so the thread's files are unchanged"):
            await copies.restore_copy(named("t1"), replace(copy, counts=more))
    assert await copies.restore_copy(named("t1"), copy)
    assert await engine.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"1\n"


def of_class(place: ClusterSite, name: str, **more: object) -> dict[str, Any]:
    about = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": name}}
    place.cluster.apply({**about, "driver": "directories.test", "deletionPolicy": "Delete", **more})
    return {"snapshot_class": name}


async def test_what_a_driver_says_of_its_failure_is_shown_and_one_that_does_not_answer_is_not_waited_for(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.volume_snapshots._FAILING_S", 0.1)
    monkeypatch.setattr("sandbox.engines.kubernetes.volume_snapshots._CUT_S", 0.2)
    for more, said in (
        ({"parameters": {"refuses": "no space in the pool\n"}}, "cannot copy the volume: no space in the pool"),
        ({"driver": "stalled.test"}, "was not taken within 0 s; see whether the cluster's snapshot controller"),
    ):
        engine = make_engine(site=of_class(place, "failing", **more))
        assert engine.copies is not None
        sandbox = await engine.create(named("t1"))
        with pytest.raises(SandboxUnavailable, match=said):
            await engine.copies.copy_workspace(named("t1"), "snap_1", unchecked)
        assert await sandbox.ping()
        await removed(engine.copies)
        await engine.close()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"name": "absent"}, "VolumeSnapshotClass 'nowhere' does not exist"),
        ({"deletionPolicy": "Retain"}, "keeps what is deleted, also of an erased tenant"),
    ],
)
async def test_a_class_that_cannot_be_used_is_refused_before_the_first_sandbox_where_it_may_be_read(
    make_engine: MakeEngine, place: ClusterSite, options: dict[str, str], said: str
) -> None:
    reads = {"apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshotclasses"], "verbs": ["get"]}
    place.cluster.grant(place.keys_namespace, f"{place.namespace}-reader", [])
    await make_engine().prepare()  # it may not read classes, and what is wrong shows with the first snapshot
    place.cluster.grant(place.keys_namespace, "gateway", [reads], everywhere=True)
    site = {"snapshot_class": "nowhere"} if "name" in options else of_class(place, "retaining", **options)
    with pytest.raises(SandboxUnavailable, match=said):
        await make_engine(site=site).prepare()


async def test_a_cluster_without_volume_snapshots_is_refused_and_so_is_an_account_that_may_not_make_them(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    granted, place.snapshots = place.snapshots, {}
    place.grant(VERBS)
    with pytest.raises(SandboxUnavailable, match="grant create, delete, get, list on volumesnapshots in"):
        await make_engine().prepare()
    place.snapshots = granted
    place.grant(VERBS)
    place.cluster.api.withheld.add("snapshot.storage.k8s.io")
    try:
        await make_engine(site={"snapshot_class": None}).prepare()
        with pytest.raises(SandboxUnavailable, match="install the CSI snapshot controller"):
            await make_engine().prepare()
    finally:
        place.cluster.api.withheld.discard("snapshot.storage.k8s.io")


@pytest.mark.parametrize(
    "verb, resource",
    [
        pytest.param("create", "persistentvolumeclaims", marks=pytest.mark.full),
        ("create", "pods"),
        pytest.param("update", "leases", marks=pytest.mark.full),
    ],
)
async def test_a_process_that_is_killed_while_it_restores_leaves_the_old_files_and_nothing_else(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch, verb: str, resource: str
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.gates.LEASE_S", 1)
    killed, later = make_engine(), make_engine()
    assert killed.copies is not None
    assert later.copies is not None
    sandbox = await killed.create(named("t1"))
    await sandbox.files.write("/workspace/a", b"then")
    copy = await copied(killed.copies, named("t1"))
    await sandbox.files.write("/workspace/a", b"now")
    assert await killed.stop_idle(sandbox.id)
    real, dead = killed._parts.requests._ask, False

    async def ask(asked: str, of: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal dead
        answer = None if dead else await real(asked, of, *arguments, **more)
        dead = dead or (asked, of.plural) == (verb, resource)
        if dead:
            raise EngineUnavailable("this process was killed")
        return answer

    monkeypatch.setattr(killed._parts.requests, "_ask", ask)
    with pytest.raises(SandboxError):
        await killed.copies.restore_copy(named("t1"), copy)
    await lose(killed)
    await later.reconcile()
    await until(lambda: sorted(line.split()[0] for line in place.left()) == _BEFORE)
    assert await later.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"now"
    assert await later.copies.restore_copy(named("t1"), copy)
    assert await later.save_workspace(named("t1"), lambda found: whole(found)["a"][1]) == b"then"
    await removed(later.copies)


_BEFORE = ["Lease", "VolumeSnapshot", "workspace"]


@pytest.mark.parametrize(
    "quantity, size_bytes",
    [
        ("10Gi", 10 * 2**30),
        ("1500M", 1_500_000_000),
        ("1.5Ki", 1536),
        ("12e3", 12_000),
        ("100m", 1),
        ("0", 0),
        ("7", 7),
    ],
)
def test_sizes_are_read_as_the_api_writes_them(quantity: str, size_bytes: int) -> None:
    assert bytes_of(quantity) == size_bytes


@pytest.mark.parametrize("quantity", ["", "Gi", "-1", "1e999", "1 Gi", "٣", None, 5, "9" * 40, "1E99", "1E19", "8Ei"])
def test_what_is_no_size_is_none(quantity: object) -> None:
    assert bytes_of(quantity) is None
