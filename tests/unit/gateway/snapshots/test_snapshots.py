"""Snapshots over an engine without Docker, on both databases: quotas, crashes, and what delays no one."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from gateway.config.model_settings import ModelSettings
from gateway.errors import Internal, NotFound, QuotaExceeded, RequestIdReused, ThreadBusy, TooLarge, Unavailable
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.snapshots.places import OnDisk, Place
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshots import Snapshots
from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import Database
from gateway.storage.engine_store import EngineStore
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.snapshot_store import RestoreStore, Snapshot, SnapshotStore
from gateway.storage.store import Store
from gateway.storage.tables import audit_records, snapshots, threads, tool_calls
from gateway.storage.thread_store import ThreadStore
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.thread_sandbox import ThreadEngines
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import WorkspaceIncomplete
from sandbox.sandbox import SandboxSpec


class Killed(BaseException):
    """What no code here expects."""


class LosingStore(SnapshotStore):
    """Loses the process, as it were, before the row is written."""

    async def add(
        self, snapshot: Snapshot, request: tuple[str, str], reported: AuditEntry, lock: str = ""
    ) -> frozenset[str]:
        raise Killed


class BreakingEngine(MemoryEngine):
    """Breaks off when the old files are gone."""

    broken = False
    coming_bytes = 0
    asked = 0

    def __init__(self, root: Path) -> None:
        super().__init__(root=root)
        self._replace, self.replace_workspace = self.replace_workspace, self._replace_unless_broken

    async def _replace_unless_broken(
        self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0
    ) -> None:
        self.asked += 1
        if self.broken:
            raise WorkspaceIncomplete("the disk broke")
        self.coming_bytes = size_bytes
        await self._replace(spec, give)


class Harness:
    def __init__(self, database: Database, directory: Path, store: type[SnapshotStore] = SnapshotStore) -> None:
        self.database = database
        self.directory = directory
        self.engine = BreakingEngine(root=directory / "engine")
        self.place: Place = OnDisk(directory / "snapshots")
        self.threads = Store(database)
        self.threads_listed = ThreadStore(database)
        self.snapshots = self.with_store(store(database))

    def with_store(self, store: SnapshotStore) -> Snapshots:
        engines = ThreadEngines(EngineStore(self.database), self.engine)
        stores = store, RestoreStore(self.database), self.threads, self.threads_listed
        return Snapshots(self.place, self.engine, engines, *stores)

    async def write(self, tenant: Tenant, thread: str, **files: bytes) -> None:
        await self.threads.thread(tenant.name, thread)
        sandbox = await self.engine.create(tenant.sandbox_spec(thread))
        for name, data in files.items():
            await sandbox.files.write(f"/workspace/{name}", data)
        await self.engine.remove(sandbox.id)

    async def files(self, tenant: Tenant, thread: str) -> dict[str, bytes]:
        def read(contents: Contents) -> dict[str, bytes]:
            return {entry.path: b"".join(content) for entry, content in contents if entry.kind == "file"}

        return await self.engine.save_workspace(tenant.sandbox_spec(thread), read) or {}

    def kept(self) -> list[Path]:
        found = (self.directory / "snapshots").rglob("*")
        return [path for path in found if path.is_file() and path.name not in ("lock", "used")]


def tenant(name: str = "acme", **sections: object) -> Tenant:
    document = PolicyDocument.model_validate({"version": 1, **sections})
    return Tenant(name, Policy(document), ModelSettings(), {})


ACME = tenant()


@pytest.fixture
async def harness(database_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    database = await Database.open(database_url)
    made = Harness(database, tmp_path)
    yield made
    await made.engine.close()
    await database.close()


async def test_a_snapshot_is_listed_restored_and_deleted_and_the_audit_has_all_of_it(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="first")
    await harness.write(ACME, "a", x=b"two", y=b"new")
    second = await harness.snapshots.create(ACME, "a", comment="")
    page, token = await harness.snapshots.page(ACME, thread="", size=1, token="")
    rest, end = await harness.snapshots.page(ACME, thread="", size=1, token=token)
    assert ([*page, *rest], end) == ([second, first], "")
    with pytest.raises(NotFound, match="thread 'b' not found"):
        await harness.snapshots.page(ACME, thread="b", size=0, token="")
    await harness.threads.thread("acme", "b")
    assert (await harness.snapshots.page(ACME, thread="b", size=0, token=""))[0] == []
    await harness.snapshots.restore(ACME, first.id, "")
    assert harness.engine.coming_bytes == 3 + 4096
    assert await harness.files(ACME, "a") == {"x": b"one"}
    await harness.snapshots.restore(ACME, second.id, "made by this")
    assert await harness.files(ACME, "made by this") == {"x": b"two", "y": b"new"}
    for one in (first, second):
        await harness.snapshots.delete(ACME, one.id)
    assert harness.kept() == []
    reported = [row.kind for row in await harness.database.rows(select(audit_records.c.kind).order_by("sequence"))]
    assert reported == ["snapshot_created"] * 2 + ["snapshot_restored"] * 2 + ["snapshot_deleted"] * 2


async def test_a_thread_without_files_has_an_empty_snapshot(harness: Harness) -> None:
    await harness.threads.thread("acme", "empty")
    empty = await harness.snapshots.create(ACME, "empty", comment="")
    await harness.write(ACME, "a", x=b"one")
    await harness.snapshots.restore(ACME, empty.id, "a")
    assert await harness.files(ACME, "a") == {}


async def test_the_same_request_gives_the_same_snapshot(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="c", request_id="r")
    assert await harness.snapshots.create(ACME, "a", comment="c", request_id="r") == first
    with pytest.raises(RequestIdReused):
        await harness.snapshots.create(ACME, "a", comment="d", request_id="r")
    other = tenant("other")
    await harness.write(other, "a", x=b"one")
    assert (await harness.snapshots.create(other, "a", comment="c", request_id="r")).id != first.id


async def test_another_tenants_snapshot_is_not_found(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    other = tenant("other")
    for asked in (harness.snapshots.get(other, first.id), harness.snapshots.delete(other, first.id)):
        with pytest.raises(NotFound):
            await asked
    with pytest.raises(NotFound):
        await harness.snapshots.restore(other, first.id, "b")
    assert await harness.snapshots.get(ACME, first.id) == first


async def test_quotas_hold_and_what_they_refuse_leaves_nothing(harness: Harness) -> None:
    few = tenant(quotas={"snapshots": 1})
    await harness.write(few, "a", x=b"one")
    first = await harness.snapshots.create(few, "a", comment="")
    before = harness.kept()
    with pytest.raises(QuotaExceeded, match="snapshots"):
        await harness.snapshots.create(few, "a", comment="")
    little = tenant(quotas={"snapshot_bytes": 30_000})
    await harness.write(few, "b", large=random.Random(1).randbytes(100_000))
    with pytest.raises(QuotaExceeded, match="snapshot_bytes"):
        await harness.snapshots.create(little, "b", comment="")
    assert harness.kept() == before
    await harness.snapshots.delete(few, first.id)
    assert harness.kept() == []


async def test_what_is_larger_than_a_workspace_is_not_restored_there(harness: Harness) -> None:
    await harness.write(ACME, "a", large=bytes(2 * 1024 * 1024))
    first = await harness.snapshots.create(ACME, "a", comment="")
    small = tenant(sandbox={"workspace_mib": 1})
    with pytest.raises(TooLarge):
        await harness.snapshots.restore(small, first.id, "a")
    assert list(await harness.files(ACME, "a")) == ["large"]


async def test_a_process_that_dies_half_way_leaves_nothing_for_long(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    kept = harness.kept()
    await harness.write(ACME, "a", y=b"two")
    dying = harness.with_store(LosingStore(harness.database))
    dying.taking.sweep = _nobody  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await dying.create(ACME, "a", comment="")
    assert len(harness.kept()) > len(kept)
    await harness.snapshots.sweep()
    assert harness.kept() == kept
    await harness.snapshots.restore(ACME, first.id, "a")
    assert await harness.files(ACME, "a") == {"x": b"one"}


async def test_a_tenants_first_snapshot_that_is_taken_while_a_gateway_sweeps_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.write(ACME, "a", x=b"one")
    loop = asyncio.get_running_loop()
    made: list[Snapshot] = []

    def meanwhile(place: OnDisk) -> list[str]:
        taking = asyncio.run_coroutine_threadsafe(harness.snapshots.create(ACME, "a", comment=""), loop)
        made.append(taking.result(timeout=30))
        return [path.name for path in place.directory.iterdir()]

    monkeypatch.setattr(OnDisk, "names", meanwhile)
    await harness.snapshots.sweep()
    await harness.snapshots.restore(ACME, made[0].id, "b")
    assert await harness.files(ACME, "b") == {"x": b"one"}


async def test_who_goes_away_leaves_no_other_alone_with_a_directory_that_is_still_worked_in(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.write(ACME, "a", x=b"one")
    working, may_end = threading.Event(), threading.Event()
    begin = SnapshotDirectory.begin

    def slowly(directory: SnapshotDirectory, ids: Collection[str]) -> int:
        working.set()
        assert may_end.wait(30)
        return begin(directory, ids)

    monkeypatch.setattr(SnapshotDirectory, "begin", slowly)
    asking = asyncio.create_task(harness.snapshots.create(ACME, "a", comment=""))
    assert await asyncio.to_thread(working.wait, 30)
    asking.cancel()
    await asyncio.wait({asking}, timeout=0.2)
    assert not asking.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_thread_is_not_restored_while_a_call_is_under_way_and_no_call_begins_meanwhile(
    harness: Harness,
) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    thread = await harness.threads.thread("acme", "a")
    words = dict.fromkeys(("name", "arguments", "arguments_digest", "policy_version"), "x")
    row = {**words, "id": "call_1", "tenant": "acme", "thread_id": thread.id, "state": "executing", "started_us": 1}
    await harness.database.write((insert(tool_calls), row))
    with pytest.raises(ThreadBusy):
        await harness.snapshots.restore(ACME, first.id, "")
    assert await _mark(harness) is None


async def test_a_restore_that_broke_off_keeps_the_thread_shut_until_it_is_made_again(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    harness.engine.broken = True
    with pytest.raises(Unavailable, match="restored again"):
        await harness.snapshots.restore(ACME, first.id, "")
    assert str(await _mark(harness)).startswith("rst_")
    harness.engine.broken = False
    await harness.snapshots.restore(ACME, first.id, "")
    assert await _mark(harness) is None


async def test_a_restore_is_done_once_for_its_request_and_again_only_where_it_broke_off(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    harness.engine.broken = True
    with pytest.raises(Unavailable):
        await harness.snapshots.restore(ACME, first.id, "", "once")
    harness.engine.broken = False
    assert await harness.snapshots.restore(ACME, first.id, "", "once") == (first, "a")
    await harness.write(ACME, "a", x=b"two")
    assert await harness.snapshots.restore(ACME, first.id, "", "once") == (first, "a")
    assert await harness.files(ACME, "a") == {"x": b"two"}
    with pytest.raises(RequestIdReused):
        await harness.snapshots.restore(ACME, first.id, "b", "once")
    await harness.snapshots.restore(ACME, first.id, "")
    assert await harness.files(ACME, "a") == {"x": b"one"}


async def test_a_deletion_that_fails_does_not_open_a_thread_whose_restore_was_cut_short(harness: Harness) -> None:
    await harness.threads.thread("acme", "a")
    await harness.database.write((update(threads).values(deletion="rst_lost"), None))
    store = ErasureStore(harness.database)
    mark = await store.begin("acme", "a", "del_1")
    assert await _mark(harness) == "del_1"
    await store.give_up("acme", "a", "del_1", mark)
    assert await _mark(harness) == "rst_lost"


@pytest.mark.parametrize("damaged", ["piece", "manifest"])
async def test_a_snapshot_that_is_damaged_replaces_nothing(harness: Harness, damaged: str) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    for path in harness.kept():
        if path.suffix == (".manifest" if damaged == "manifest" else ""):
            path.write_bytes(b"")
    with pytest.raises(Internal):
        await harness.snapshots.restore(ACME, first.id, "")
    assert harness.engine.asked == 0  # another engine may have removed the old files by then
    assert await harness.files(ACME, "a") == {"x": b"one"}
    assert await _mark(harness) is None


async def test_nothing_is_kept_of_nor_put_into_a_thread_that_is_being_deleted(harness: Harness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    await ErasureStore(harness.database).begin("acme", "a", "del_1")
    with pytest.raises(ThreadBusy):
        await harness.snapshots.create(ACME, "a", comment="")
    with pytest.raises(ThreadBusy):
        await harness.snapshots.restore(ACME, first.id, "a")
    assert (await harness.snapshots.page(ACME, thread="", size=0, token=""))[0] == [first]


async def test_no_file_of_a_tenant_is_left_that_is_erased_and_all_of_others(harness: Harness) -> None:
    other = tenant("other")
    for one in (ACME, other):
        await harness.write(one, "a", x=b"one")
        await harness.snapshots.create(one, "a", comment="")
    assert (await harness.snapshots.left_of("acme"))["snapshot_files"] == 4
    await harness.snapshots.erase("acme")
    assert await harness.snapshots.left_of("acme") == {"snapshot_files": 0}
    assert len(harness.kept()) == 4


async def _mark(harness: Harness) -> str | None:
    mark: str | None = (await harness.database.rows(select(threads.c.deletion)))[0].deletion
    return mark


async def _nobody(*_: object) -> None:
    """What a process does that is dead."""


async def test_a_snapshot_whose_row_is_written_after_its_caller_went_away_has_its_files(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.write(ACME, "a", x=b"one")
    adding, may_add = asyncio.Event(), asyncio.Event()
    add = SnapshotStore.add

    async def late(
        store: SnapshotStore, snapshot: Snapshot, request: tuple[str, str], reported: AuditEntry, lock: str
    ) -> frozenset[str]:
        adding.set()
        # As the writer does: what is queued is committed, with or without a waiter.
        writing = asyncio.ensure_future(_after(may_add, add(store, snapshot, request, reported)))
        return await asyncio.shield(writing)

    monkeypatch.setattr(SnapshotStore, "add", late)
    asking = asyncio.create_task(harness.snapshots.create(ACME, "a", comment=""))
    await adding.wait()
    asking.cancel()
    await asyncio.wait({asking}, timeout=0.2)
    may_add.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (kept,) = await harness.database.rows(select(snapshots))
    await harness.snapshots.restore(ACME, kept.id, "b")
    assert await harness.files(ACME, "b") == {"x": b"one"}


async def _after(event: asyncio.Event, work: Awaitable[frozenset[str]]) -> frozenset[str]:
    await event.wait()
    return await work
