"""What of a snapshot waits in memory while it is written and read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gateway.snapshots import snapshot_files
from gateway.snapshots.blobs import Blobs
from gateway.snapshots.directory_objects import DirectoryObjects
from gateway.snapshots.snapshot_files import Limits, SnapshotFiles
from sandbox.engines.workspace_archive import Contents, WorkspaceEntry

_FILES = 1_000
# Of 4 KiB at least, and 64 KiB in all: see the fixture.
_WAIT_AT_MOST = 16
_KINDS = {
    "empty": WorkspaceEntry("", "file"),
    "one byte": WorkspaceEntry("", "file", size_bytes=1),
    "link": WorkspaceEntry("", "symlink", target="t" * 4_000),
    "directory": WorkspaceEntry("", "directory"),
}


class _Counted(DirectoryObjects):
    """Counts the entries whose lines of the manifest have not come yet, and the pieces that are read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.taken = self.waiting = self.read = 0
        self._lock = threading.Lock()

    def entries(self, kind: str) -> Contents:
        one = _KINDS[kind]
        for number in range(_FILES):
            self.taken += 1
            content = [b"%d" % (number % 10)] if one.size_bytes else []
            yield WorkspaceEntry(f"f{number}", one.kind, size_bytes=one.size_bytes, target=one.target), iter(content)

    def put(self, name: str, parts: Iterable[bytes], *, last: bool = False) -> int:
        return super().put(name, self._seen(parts) if name.endswith(".manifest") else parts, last=last)

    def _seen(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        # The first line has the version, and the last two parts have no entry.
        for number, part in enumerate(parts):
            if number <= _FILES:
                self.waiting = max(self.waiting, self.taken - number)
            yield part

    def get(self, name: str, part_bytes: int = 8 * 1024 * 1024) -> Iterator[bytes]:
        if name.startswith("blobs/"):
            with self._lock:
                self.read += 1
        return super().get(name, part_bytes)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Counted:
    monkeypatch.setattr(snapshot_files, "_WAITING_BYTES", 64 * 1024)
    return _Counted(tmp_path)


@pytest.mark.parametrize("kind", _KINDS)
def test_few_entries_wait_while_a_snapshot_is_written(objects: _Counted, kind: str) -> None:
    files = SnapshotFiles(objects, "snap_x", Blobs(objects))
    written = files.write(objects.entries(kind), Limits(2**30, 2**30))
    assert objects.waiting <= _WAIT_AT_MOST
    read = [(entry, b"".join(content)) for entry, content in files.read()]
    assert read == [(entry, b"".join(content)) for entry, content in objects.entries(kind)]
    assert written.size_bytes == sum(len(content) for _, content in read)


def test_few_pieces_are_read_ahead(objects: _Counted) -> None:
    files = SnapshotFiles(objects, "snap_x", Blobs(objects))
    files.write(objects.entries("one byte"), Limits(2**30, 2**30))
    for number, (_, content) in enumerate(files.read()):
        assert b"".join(content) == b"%d" % (number % 10)
        assert objects.read <= number + 1 + _WAIT_AT_MOST
    assert objects.read == _FILES
