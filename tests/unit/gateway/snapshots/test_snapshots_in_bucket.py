"""Snapshots in a bucket, taken and restored by two gateways without a shared disk, of which one may be killed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select, update

from gateway.errors import InProgress, Unavailable
from gateway.snapshots import locks as locks_module
from gateway.snapshots.bucket import Bucket
from gateway.snapshots.places import InBucket
from gateway.storage.database import Database, identity_of
from gateway.storage.lock_store import LockStore
from gateway.storage.snapshot_store import SnapshotStore
from gateway.storage.tables import snapshot_locks, snapshots
from tests.s3_server import S3Server
from tests.unit.gateway.snapshots.test_snapshots import ACME, Harness, Killed, LosingStore, _nobody, tenant


class InBucketHarness(Harness):
    def __init__(self, database: Database, directory: Path, place: InBucket, s3: S3Server) -> None:
        super().__init__(database, directory)
        self.place, self.s3 = place, s3
        self.snapshots, self.other = (self.with_store(SnapshotStore(database)) for _ in range(2))

    def keys(self) -> list[str]:
        assert isinstance(self.place, InBucket)
        found = [key for key in self.s3.names() if key.startswith(self.place.prefix)]
        return [key for key in found if not key.endswith(("/database", "/used"))]


@pytest.fixture
async def harness(
    database_url: str, tmp_path: Path, bucket: Bucket, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InBucketHarness]:
    monkeypatch.setattr(locks_module, "LOCK_TIMEOUT_S", 0.3)
    database = await Database.open(database_url)
    identity = await identity_of(database)
    place = InBucket.opened(bucket, f"{secrets.token_hex(4)}/", "gw_1", identity, LockStore(database))
    made = InBucketHarness(database, tmp_path, place, s3)
    yield made
    await made.engine.close()
    await database.close()


async def test_what_one_gateway_takes_the_other_restores_and_deletes(harness: InBucketHarness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    await harness.write(ACME, "a", x=b"two")
    second = await harness.other.create(ACME, "a", comment="")
    await harness.other.restore(ACME, first.id, "")
    assert await harness.files(ACME, "a") == {"x": b"one"}
    await harness.snapshots.restore(ACME, second.id, "b")
    assert await harness.files(ACME, "b") == {"x": b"two"}
    await harness.snapshots.delete(ACME, second.id)
    await harness.other.restore(ACME, first.id, "b")
    await harness.other.delete(ACME, first.id)
    assert harness.keys() == []


async def test_two_gateways_that_take_snapshots_at_once_wait_for_each_other(harness: InBucketHarness) -> None:
    await harness.write(ACME, "a", x=b"one", y=b"two")

    async def create(n: int) -> None:
        gateway = (harness.snapshots, harness.other)[n % 2]
        while True:
            try:
                await gateway.create(ACME, "a", comment=str(n))
                return
            except InProgress:
                await asyncio.sleep(0.05)

    await asyncio.gather(*map(create, range(6)))
    found, _ = await harness.snapshots.page(ACME, thread="a", size=0, token="")
    assert len(found) == 6
    for one in found:
        await harness.other.restore(ACME, one.id, "b")
        await harness.snapshots.delete(ACME, one.id)
    assert harness.keys() == []
    assert await harness.database.scalar(select(func.count()).select_from(snapshot_locks)) == 0


async def test_what_a_killed_gateway_left_is_swept_by_another(harness: InBucketHarness) -> None:
    await harness.write(ACME, "a", x=b"one")
    await harness.snapshots.create(ACME, "a", comment="")
    kept = harness.keys()
    await harness.write(ACME, "a", y=b"two")
    dying = harness.with_store(LosingStore(harness.database))
    dying.taking.sweep = _nobody  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await dying.create(ACME, "a", comment="")
    assert len(harness.keys()) > len(kept)
    await harness.other.sweep()
    assert harness.keys() == kept


async def test_a_gateway_that_lost_its_lock_writes_no_row(
    harness: InBucketHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have swept the files meanwhile."""
    await harness.write(ACME, "a", x=b"one")
    save = harness.engine.save_workspace

    async def slowly(*args: object) -> object:
        written = await save(*args)  # type: ignore[arg-type]
        await harness.database.write((update(snapshot_locks).values(expires_us=0), None))
        await harness.other.sweep()
        return written

    monkeypatch.setattr(harness.engine, "save_workspace", slowly)
    with pytest.raises(Unavailable, match="lock"):
        await harness.snapshots.create(ACME, "a", comment="")
    assert await harness.database.scalar(select(func.count()).select_from(snapshots)) == 0
    assert harness.keys() == []


async def test_nothing_is_removed_under_a_lock_that_may_be_lost(harness: InBucketHarness) -> None:
    await harness.write(ACME, "a", x=b"one")
    first = await harness.snapshots.create(ACME, "a", comment="")
    kept = harness.keys()
    directory = harness.snapshots.of("acme")
    async with directory.alone():
        directory._locks._renewed_s -= 21  # type: ignore[attr-defined]
        with pytest.raises(Unavailable, match="not renewed"):
            await asyncio.to_thread(directory.sweep, ())
        with pytest.raises(Unavailable, match="not renewed"):
            await asyncio.to_thread(directory.erase)
    assert harness.keys() == kept
    await harness.other.restore(ACME, first.id, "b")


async def test_no_object_of_an_erased_tenant_is_left_and_all_of_others(harness: InBucketHarness) -> None:
    other = tenant("other")
    for one in (ACME, other):
        await harness.write(one, "a", x=b"one")
        await harness.snapshots.create(one, "a", comment="")
    assert await harness.other.left_of("acme") == {"snapshot_files": 4}
    await harness.other.erase("acme")
    assert await harness.snapshots.left_of("acme") == {"snapshot_files": 0}
    assert len(harness.keys()) == 4
    await harness.database.write((delete(snapshots), None))
    await harness.other.sweep()
    assert harness.keys() == []
