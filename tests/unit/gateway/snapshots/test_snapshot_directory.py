"""Snapshots on the disk and in a bucket: whole or not there, each byte once in a tenant, and never another's."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import zlib
from pathlib import Path

import pytest

from gateway.errors import InProgress, Internal, NoSpace, QuotaExceeded, TooLarge
from gateway.snapshots.blobs import BLOB_LIMIT_BYTES
from gateway.snapshots.locks import FileLocks
from gateway.snapshots.objects import Objects
from gateway.snapshots.places import OnDisk
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.snapshots.snapshot_files import Limits
from sandbox.engines.workspace_archive import Contents, WorkspaceEntry

_LIMITS = Limits(size_bytes=64 * 1024 * 1024, stored_bytes=64 * 1024 * 1024)


def of(files: dict[str, bytes]) -> Contents:
    yield WorkspaceEntry("", "directory", 0o755, 1), iter([])
    for path, data in files.items():
        entry = WorkspaceEntry(path, "file", 0o4640, 2, len(data))
        yield entry, iter([data[:1000], data[1000:]])


def files_of(directory: SnapshotDirectory, id_: str) -> dict[str, bytes]:
    return {entry.path: b"".join(content) for entry, content in directory.of(id_).read() if entry.kind == "file"}


def random_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def directory(objects: Objects, tmp_path: Path) -> SnapshotDirectory:
    return SnapshotDirectory(objects, FileLocks(tmp_path / "a"))


@pytest.fixture
def on_disk(tmp_path: Path) -> SnapshotDirectory:
    return OnDisk(tmp_path).of("a")


def changed(objects: Objects, name: str, data: bytes | None) -> None:
    objects.remove([name])
    if data is not None:
        objects.put(name, [data])


def test_a_snapshot_gives_back_what_was_put_in(directory: SnapshotDirectory) -> None:
    files = {"a": b"", "b": b"x" * 5_000, "c": random_bytes(1, 9_500_000), "d/\udcff": b"\0" * 4_194_304}
    written = directory.of("s1").write(of(files), _LIMITS)
    assert (written.files, written.size_bytes) == (4, sum(map(len, files.values())))
    assert written.stripped == 4
    assert written.stored_bytes < 9_500_000 + 100_000
    directory.of("s1").check_whole()
    assert files_of(directory, "s1") == files
    assert [entry.mode for entry, _ in directory.of("s1").read()] == [0o755, 0o640, 0o640, 0o640, 0o640]


def test_what_was_kept_before_takes_no_more_room_in_its_tenant_and_in_no_other(tmp_path: Path) -> None:
    one, other = OnDisk(tmp_path).of("a"), OnDisk(tmp_path).of("b")
    files = {"c": random_bytes(1, 1_000_000)}
    assert one.of("s1").write(of(files), _LIMITS).stored_bytes > 1_000_000
    assert one.of("s2").write(of({"renamed": files["c"]}), _LIMITS).stored_bytes < 20_000
    assert other.of("s3").write(of(files), _LIMITS).stored_bytes > 1_000_000


def test_sweeping_removes_what_no_snapshot_has_and_keeps_what_one_has(directory: SnapshotDirectory) -> None:
    shared, own = random_bytes(1, 300_000), random_bytes(2, 300_000)
    directory.of("s1").write(of({"shared": shared, "own": own}), _LIMITS)
    directory.of("s2").write(of({"shared": shared}), _LIMITS)
    before = directory.sweep({"s1", "s2"})
    after = directory.sweep({"s2"})
    assert before - after > 300_000
    assert files_of(directory, "s2") == {"shared": shared}
    with pytest.raises(Internal):
        directory.of("s1").check_whole()
    assert directory.sweep(()) == 0


def test_what_breaks_off_half_way_leaves_nothing_that_is_kept(directory: SnapshotDirectory) -> None:
    def breaking() -> Contents:
        yield WorkspaceEntry("a", "file", 0o600, 0, 300_000), iter([random_bytes(1, 300_000)])
        raise Internal("broken")

    with pytest.raises(Internal):
        directory.of("s1").write(breaking(), _LIMITS)
    with pytest.raises(Internal):
        directory.of("s1").check_whole()
    assert directory.sweep(()) == 0


def test_what_is_too_much_is_refused_before_it_is_read(directory: SnapshotDirectory) -> None:
    def huge() -> Contents:
        yield WorkspaceEntry("sparse", "file", 0o600, 0, 2**60), (pytest.fail("it was read") for _ in range(1))

    with pytest.raises(TooLarge):
        directory.of("s1").write(huge(), _LIMITS)
    with pytest.raises(TooLarge):
        directory.of("s1").write(of({"a": b"", "b": b""}), Limits(1000, 1000, entries=2))
    with pytest.raises(QuotaExceeded):
        directory.of("s1").write(of({"a": random_bytes(1, 50_000)}), Limits(100_000, 10_000))


def test_what_is_skipped_counts_so_pipes_without_end_are_too_much(directory: SnapshotDirectory) -> None:
    def endless() -> Contents:
        yield from ((WorkspaceEntry(f"pipe{number}", "special"), iter([])) for number in itertools.count())

    with pytest.raises(TooLarge):
        directory.of("s1").write(endless(), Limits(1000, 1000, entries=100))


def test_a_damaged_or_missing_piece_is_an_error_and_no_file(directory: SnapshotDirectory, objects: Objects) -> None:
    directory.of("s1").write(of({"a": random_bytes(1, 50_000)}), _LIMITS)
    [(piece, _)] = objects.names("blobs/")
    for damaged in (b"r" + random_bytes(2, 50_000), b"", None):
        changed(objects, piece, damaged)
        with pytest.raises(Internal):
            files_of(directory, "s1")
        with pytest.raises(Internal):
            directory.of("s1").check_whole()


def test_a_manifest_that_was_cut_is_an_error(directory: SnapshotDirectory, objects: Objects) -> None:
    directory.of("s1").write(of({str(n): b"%d" % (n % 9) for n in range(500)}), _LIMITS)
    manifest = directory.of("s1").manifest
    whole = b"".join(objects.get(manifest))
    for cut in (0, 1, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        changed(objects, manifest, whole[:cut])
        with pytest.raises(Internal):
            files_of(directory, "s1")
        with pytest.raises(Internal):
            directory.of("s1").check_whole()


def test_a_manifest_that_leaves_out_a_piece_of_a_file_is_an_error(
    directory: SnapshotDirectory, objects: Objects
) -> None:
    directory.of("s1").write(of({"a": b"a" * (BLOB_LIMIT_BYTES + 1)}), _LIMITS)
    directory.of("s1").check_whole()
    manifest = directory.of("s1").manifest
    lines = [json.loads(line) for line in zlib.decompress(b"".join(objects.get(manifest))).splitlines()]
    lines[2]["pieces"].pop()
    changed(objects, manifest, zlib.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    with pytest.raises(Internal):
        directory.of("s1").check_whole()


def test_a_reader_who_skips_files_gets_the_right_content_of_the_others(directory: SnapshotDirectory) -> None:
    files = {str(n): random_bytes(n, 5_000_000 if n == 3 else 100) for n in range(20)}
    directory.of("s1").write(of(files), _LIMITS)
    found = {}
    for entry, content in directory.of("s1").read():
        if entry.path in ("1", "4", "19"):
            found[entry.path] = b"".join(content)
        elif entry.path == "3":
            assert len(next(content)) == BLOB_LIMIT_BYTES
    assert found == {name: files[name] for name in ("1", "4", "19")}


def test_a_disk_that_is_nearly_full_is_left_alone(on_disk: SnapshotDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.snapshots.directory_objects._KEPT_FREE_BYTES", 2**60)
    with pytest.raises(NoSpace) as refused:
        on_disk.of("s1").write(of({"a": b"1"}), _LIMITS)
    assert refused.value.details == {"disk": "gateway"}


async def test_one_takes_and_deletes_at_a_time_and_several_restore(
    on_disk: SnapshotDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.snapshots.locks.LOCK_TIMEOUT_S", 0.0)
    async with on_disk.shared(), on_disk.shared():
        with pytest.raises(InProgress):
            async with on_disk.alone():
                pass
    async with on_disk.alone():
        for entering in (on_disk.alone(), on_disk.shared()):
            with pytest.raises(InProgress):
                async with entering:
                    pass


async def test_who_waits_while_a_tenant_is_erased_begins_anew(on_disk: SnapshotDirectory, tmp_path: Path) -> None:
    async with on_disk.alone():
        on_disk.of("s1").write(of({"a": b"1"}), _LIMITS)
        waiting = asyncio.create_task(_write_later(on_disk))
        await asyncio.sleep(0)
        on_disk.erase()
        assert on_disk.count() == 0
        assert list(tmp_path.iterdir()) == []
    await waiting
    assert files_of(on_disk, "s2") == {"b": b"2"}


async def _write_later(on_disk: SnapshotDirectory) -> None:
    async with on_disk.alone():
        on_disk.of("s2").write(of({"b": b"2"}), _LIMITS)
