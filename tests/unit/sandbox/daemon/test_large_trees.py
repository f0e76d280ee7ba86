"""Searches of very many files: what they hold in memory is the names of one directory, whatever the tree has."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.daemon.files import search
from sandbox.daemon.files.tree_files import walk
from sandbox.v1 import channel_pb2 as wire

_COUNT = 50_000
_BYTES_PER_NAME = 250


class Listed:
    """An entry of a directory that is not on any disk."""

    def __init__(self, name: str, directory: bool) -> None:
        self.name = name
        self._directory = directory

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return self._directory

    def is_file(self, *, follow_symlinks: bool) -> bool:
        return not self._directory


class Listing:
    def __init__(self, directory: bool) -> None:
        self._directory = directory

    def __enter__(self) -> Iterator[Listed]:
        return (Listed(f"f{n:06}", self._directory) for n in range(_COUNT))

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.fixture
def peak() -> Iterator[None]:
    """Fail when the test held more than the names of one directory."""
    tracemalloc.start()
    yield
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < _COUNT * _BYTES_PER_NAME


def test_a_directory_of_very_many_files_is_walked_with_its_names_in_memory_and_no_more(
    monkeypatch: pytest.MonkeyPatch, peak: None
) -> None:
    monkeypatch.setattr(os, "scandir", lambda fd: Listing(directory=False))
    assert sum(found.is_regular for found in walk(-1, None)) == _COUNT


def test_a_glob_forgets_the_directories_that_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peak: None
) -> None:
    monkeypatch.setattr(os, "scandir", lambda fd: Listing(directory=True))
    reply = wire.EntriesReply()
    request = wire.GlobRequest(path=str(tmp_path), pattern="**/nothing", limit=10)
    search.emit_paths(request, 10, "/x", reply.MergeFrom)
    assert (len(reply.entries), reply.more) == (0, False)


def test_a_glob_keeps_apart_what_directories_at_one_depth_have_matched(tmp_path: Path) -> None:
    for name in ("a/x/1", "a/y/1", "b/x/1", "a/x/z/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    reply = wire.EntriesReply()
    search.emit_paths(wire.GlobRequest(path=str(tmp_path), pattern="a/**/x/1"), 10, "/x", reply.MergeFrom)
    assert [os.fsdecode(entry.name) for entry in reply.entries] == [f"{tmp_path}/a/x/1"]
