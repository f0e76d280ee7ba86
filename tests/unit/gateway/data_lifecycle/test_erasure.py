"""Erasure on real databases: nothing of the erased is left, nothing of others is touched, and it is proved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import insert, select, update

from gateway.data_lifecycle.erasure import Erasure, remove_files
from gateway.errors import NotFound, ThreadBusy, Unavailable
from gateway.storage import queries
from gateway.storage.audit_store import OPERATORS
from gateway.storage.database import Database
from gateway.storage.erasure_store import ErasureStore, belongs_to_tenant, belongs_to_thread
from gateway.storage.tables import api_keys, audit_records, metadata, runs, threads
from sandbox.engines.engine import Engine
from sandbox.errors import EngineUnavailable, SandboxBusy, SandboxUnavailable, WorkspaceIncomplete
from tests.unit.gateway.filled_database import AUDIT, OF_NO_TENANT, fill, rows

GONE, KEPT = "zgone", "zkept"


class Files:
    """What would remove files: says what it was asked for, and fails as often as the test says."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, str]] = []
        self.failures: list[Exception] = []
        self.none_of: set[str] = set()
        self.left = {"volumes": 0, "containers": 0}
        self.engine = f"{GONE} engine"

    async def engine_id(self) -> str:
        return self.engine

    async def remove_rest(self, tenant: str) -> int:
        return 0

    async def remove(self, tenant: str, thread: str) -> bool:
        if self.failures:
            raise self.failures.pop()
        self.removed.append((tenant, thread))
        return thread not in self.none_of

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        assert tenant in (GONE, KEPT)
        return self.left


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    for tenant in (GONE, KEPT):
        await fill(opened, tenant)
    yield opened
    await opened.close()


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def erasure(database: Database, files: Files) -> Erasure:
    async def no_time(_: float) -> None:
        return None

    return Erasure(database, ErasureStore(database), files, sleep=no_time)


async def _name(database: Database, tenant: str) -> str:
    return str((await database.rows(select(threads.c.name).where(threads.c.tenant == tenant)))[0].name)


def test_every_table_is_a_tenants_or_is_known_to_be_of_no_tenant() -> None:
    of_no_tenant_tables = {table.name for table in metadata.sorted_tables if belongs_to_tenant(table, "t") is None}
    assert of_no_tenant_tables == set(OF_NO_TENANT)
    threads_own = {table.name for table in metadata.sorted_tables if belongs_to_thread(table, "t") is not None}
    columns = {"thread_id", "run_id"}
    assert threads_own == {
        table.name
        for table in metadata.sorted_tables
        if table is threads or (columns & set(table.c.keys()) and table.name not in AUDIT)
    }


@pytest.mark.parametrize("audit, batch", [(True, 1), (False, 1000)])
async def test_nothing_of_a_tenant_is_left_and_nothing_of_others_is_touched(
    database: Database, erasure: Erasure, files: Files, audit: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BATCH_ROWS", batch)
    before, name = await rows(database), await _name(database, GONE)
    erased = await erasure.tenant(GONE, audit, "operator")
    after = await rows(database)
    of_no_tenant = {"settings", "gateways", "snapshot_locks"}
    for table, found in before.items():
        stays = table in of_no_tenant or (table in AUDIT and not audit)
        expected = [row for row in found if stays or GONE not in str(row)]
        assert [row for row in after[table] if row[0] != OPERATORS] == expected, table
    assert files.removed == [(GONE, name)]
    assert erased.workspaces_removed == 1
    touched = set(metadata.tables) - of_no_tenant - set(AUDIT)
    assert {table: erased.removed[table] for table in touched} == dict.fromkeys(touched, 1)
    assert {table for table, left in erased.left.items() if left} == (set() if audit else set(AUDIT))
    record = (await database.rows(select(audit_records).where(audit_records.c.tenant == OPERATORS)))[0]
    reported = json.loads(record.details)
    assert (record.sequence, record.kind, record.actor) == (erased.audit_sequence, "tenant_deleted", "operator")
    assert (reported["tenant"], reported["removed"], reported["left"]) == (
        GONE,
        dict(erased.removed),
        dict(erased.left),
    )
    assert reported["audit_sequence"] == 1


async def test_what_the_engine_removed_and_still_has_is_counted_and_in_the_audit(
    database: Database, erasure: Erasure, files: Files
) -> None:
    files.none_of, files.left = {await _name(database, GONE)}, {"volumes": 2, "containers": 1}
    erased = await erasure.tenant(GONE, True, "operator")
    assert erased.workspaces_removed == 0
    assert {table: left for table, left in erased.left.items() if left} == {"volumes": 2, "containers": 1}
    record = (await database.rows(select(audit_records).where(audit_records.c.tenant == OPERATORS)))[0]
    reported = json.loads(record.details)
    assert (reported["left"], reported["workspaces_removed"]) == (dict(erased.left), 0)


async def test_what_the_engine_has_of_threads_without_a_row_goes_too(
    erasure: Erasure, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Exception] = [SandboxUnavailable("volume is in use")]

    async def remove_rest(tenant: str) -> int:
        assert files.removed[-1][0] == tenant  # after the files of the threads that are known
        if held:
            raise held.pop()
        return 2

    monkeypatch.setattr(files, "remove_rest", remove_rest)
    assert (await erasure.tenant(GONE, True, "operator")).workspaces_removed == 3
    held += [SandboxUnavailable("volume is in use")] * 100
    files.engine = f"{KEPT} engine"
    with pytest.raises(Unavailable, match="try again"):
        await erasure.tenant(KEPT, True, "operator")


async def test_whether_a_tenant_was_deleted_is_known_by_its_whole_name(database: Database, erasure: Erasure) -> None:
    assert not await erasure.store.was_deleted(GONE)
    await erasure.tenant(GONE, True, "operator")
    assert await erasure.store.was_deleted(GONE)
    assert not any([await erasure.store.was_deleted(name) for name in ("gone", "zgon", "z_one", "%", "", KEPT)])


async def test_an_engine_that_does_not_say_what_it_has_leaves_the_rows(
    database: Database, erasure: Erasure, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: str) -> dict[str, int]:
        raise EngineUnavailable("gone")

    monkeypatch.setattr(files, "left_of", silent)
    with pytest.raises(Unavailable, match="try again"):
        await erasure.tenant(GONE, True, "operator")
    assert await _name(database, GONE)


async def test_to_erase_twice_is_no_error(erasure: Erasure) -> None:
    await erasure.tenant(GONE, True, "operator")
    assert not any((await erasure.tenant(GONE, True, "operator")).removed.values())


async def test_a_run_that_does_not_end_is_taken_from_its_gateway(database: Database, erasure: Erasure) -> None:
    await database.write((update(runs).where(runs.c.tenant == GONE).values(status="running", gateway="lost"), None))
    erased = await erasure.tenant(GONE, True, "operator")
    assert not any(erased.left.values())


async def test_a_run_under_way_is_asked_to_end_and_waited_for(database: Database, files: Files) -> None:
    mine = runs.c.tenant == GONE
    await database.write((update(runs).where(mine).values(status="running", cancel_us=None), None))
    await database.write((update(api_keys).values(revoked_us=None), None))
    waited: list[bool] = []

    async def host(_: float) -> None:
        asked = (await database.rows(select(runs.c.cancel_us).where(mine)))[0].cancel_us
        revoked = (await database.rows(select(api_keys.c.revoked_us).where(api_keys.c.tenant == GONE)))[0].revoked_us
        waited.append(asked is not None and revoked is not None and not files.removed)
        await database.write((update(runs).where(mine).values(status="cancelled"), None))

    await Erasure(database, ErasureStore(database), files, sleep=host).tenant(GONE, True, "operator")
    assert waited == [True]


async def test_files_that_cannot_be_removed_leave_the_rows_so_that_it_can_be_asked_again(
    database: Database, erasure: Erasure, files: Files
) -> None:
    files.failures = [EngineUnavailable("gone"), SandboxBusy("in use")]
    with pytest.raises(Unavailable, match="try again"):
        await erasure.tenant(GONE, True, "operator")
    assert await _name(database, GONE)
    assert not any((await erasure.tenant(GONE, True, "operator")).left.values())


async def test_a_thread_goes_whole_and_its_audit_says_so(database: Database, erasure: Erasure, files: Files) -> None:
    before, name = await rows(database), await _name(database, GONE)
    removed = await erasure.thread(GONE, name, "key")
    after = await rows(database)
    gone = {table for table in before if len(after[table]) == len(before[table]) - 1}
    assert gone == set(removed) == {table for table in removed if removed[table] == 1}
    assert gone >= {"threads", "messages", "thread_metadata", "runs", "events", "tool_calls", "approvals", "grants"}
    assert all(row in after[table] for table in before for row in before[table] if KEPT in str(row))
    last = (await database.rows(select(audit_records).where(audit_records.c.kind == "thread_deleted")))[0]
    assert (last.tenant, last.thread, last.actor, json.loads(last.details)) == (GONE, name, "key", dict(removed))
    assert files.removed == [(GONE, name)]
    with pytest.raises(NotFound):
        await erasure.thread(GONE, name, "key")


@pytest.mark.parametrize("status", ["running", "waiting"])
async def test_a_thread_with_a_run_under_way_keeps_its_files_and_rows(
    database: Database, erasure: Erasure, files: Files, status: str
) -> None:
    await database.write((update(runs).where(runs.c.tenant == GONE).values(status=status), None))
    before = await rows(database)
    with pytest.raises(ThreadBusy, match="cancel it first"):
        await erasure.thread(GONE, await _name(database, GONE), "key")
    assert await rows(database) == before
    assert files.removed == []


async def test_a_thread_with_calls_under_way_keeps_its_rows(database: Database, erasure: Erasure, files: Files) -> None:
    files.failures = [SandboxBusy("in use")]
    before = await rows(database)
    with pytest.raises(ThreadBusy, match="busy with tool calls"):
        await erasure.thread(GONE, await _name(database, GONE), "key")
    assert await rows(database) == before


async def test_a_thread_whose_files_may_be_gone_can_only_be_deleted(
    database: Database, erasure: Erasure, files: Files
) -> None:
    await database.write((update(runs).where(runs.c.tenant == GONE).values(status="completed"), None))
    name = await _name(database, GONE)

    async def mark() -> str | None:
        return str((await database.rows(select(threads.c.deletion).where(threads.c.tenant == GONE)))[0].deletion)

    files.failures = [WorkspaceIncomplete("the engine failed")]
    with pytest.raises(Unavailable, match="delete it again"):
        await erasure.thread(GONE, name, "key")
    shut = await mark()
    assert shut.startswith("del_")
    # A deletion after it that removes nothing opens the thread no more than the first did.
    files.failures = [SandboxUnavailable("the engine does not answer")]
    with pytest.raises(Unavailable, match="could not be removed"):
        await erasure.thread(GONE, name, "key")
    assert await mark() == shut
    assert (await erasure.thread(GONE, name, "key"))["threads"] == 1


async def test_a_caller_that_goes_away_does_not_open_a_thread_whose_files_are_being_removed(
    database: Database, erasure: Erasure, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.write((update(runs).where(runs.c.tenant == GONE).values(status="completed"), None))
    name = await _name(database, GONE)
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def slow(tenant: str, thread: str) -> bool:
        begun.set()
        await going_on.wait()
        return True

    monkeypatch.setattr(files, "remove", slow)
    deleting = asyncio.create_task(erasure.thread(GONE, name, "key"))
    await begun.wait()
    deleting.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    assert await database.rows(select(threads.c.id).where(threads.c.tenant == GONE)) == []


async def test_another_tenants_thread_of_that_name_is_not_there(database: Database, erasure: Erasure) -> None:
    with pytest.raises(NotFound):
        await erasure.thread(KEPT, await _name(database, GONE), "key")


async def test_files_on_another_engine_are_removed_by_a_gateway_there_and_the_rows_wait_for_that(
    database: Database, erasure: Erasure, files: Files
) -> None:
    mine, name = threads.c.tenant == GONE, await _name(database, GONE)
    own = {column.name: None for column in threads.columns if column.nullable}
    row = {"id": "second", "tenant": GONE, "name": "second", "created_us": 1, **own}
    await database.write(
        (update(threads).where(mine).values(engine="there"), None),
        (update(runs).where(runs.c.tenant == GONE).values(status="completed"), None),
        (insert(threads), row | {"engine": "here"}),
    )
    files.engine = "here"
    with pytest.raises(Unavailable, match="there"):
        await erasure.thread(GONE, name, "key")
    with pytest.raises(Unavailable, match="there"):
        await erasure.tenant(GONE, True, "operator")
    assert files.removed == [(GONE, "second")]
    files.engine = "there"
    erased = await erasure.tenant(GONE, True, "operator")
    assert (GONE, name) in files.removed
    assert not any(erased.left.values())


async def test_a_workspace_that_a_container_on_its_way_out_still_holds_is_waited_for() -> None:
    held: list[Exception] = [SandboxUnavailable("volume is in use"), SandboxUnavailable("volume is in use")]
    asked: list[str] = []

    class Held:
        async def remove_of(self, tenant: str, thread: str) -> None:
            asked.append(f"stop {tenant} {thread}")

        async def remove_workspace(self, tenant: str, thread: str) -> bool:
            if held:
                raise held.pop()
            asked.append(f"removed {tenant} {thread}")
            return True

    async def no_time(_: float) -> None:
        return None

    engine: Engine = cast(Any, Held())
    assert await remove_files(engine, "t", "a", no_time)
    assert asked == ["stop t a", "stop t a", "stop t a", "removed t a"]
    held += [SandboxUnavailable("volume is in use")] * 100
    with pytest.raises(SandboxUnavailable):
        await remove_files(engine, "t", "a", no_time)
    # Whatever comes after files may be gone, that is what the last try says.
    held[:] = [EngineUnavailable("no answer"), WorkspaceIncomplete("emptied")]
    with pytest.raises(WorkspaceIncomplete, match="no answer"):
        await remove_files(engine, "t", "a", no_time)


async def test_no_byte_of_what_was_erased_is_in_the_files_of_sqlite(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    for tenant in (GONE, KEPT):
        await fill(database, tenant, message=f"{tenant} said " * 2000, payload=f"{tenant} did " * 500)

    def bytes_of(tenant: str) -> int:
        return sum(path.read_bytes().count(tenant.encode()) for path in tmp_path.iterdir())

    assert bytes_of(GONE) > 2000
    await Erasure(database, ErasureStore(database), Files()).tenant(GONE, True, "operator")
    kept = bytes_of(KEPT)
    # The operators' record names the tenant, and so does what is in tables of no tenant.
    named = sum(GONE in str(row) for table, found in (await rows(database)).items() for row in found)
    assert named <= 4
    assert bytes_of(GONE) <= 16
    assert kept > 2000
    await database.close()
