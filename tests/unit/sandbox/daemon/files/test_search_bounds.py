"""What a search does not reach is counted; a very long line is searched as one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.client.remote_fs import _REMOVE_TIMEOUT_S
from sandbox.daemon.failures import Fault
from sandbox.daemon.files import search, tree_files
from sandbox.v1 import channel_pb2 as wire

_PIECE_BYTES = search._LINE_LIMIT_BYTES


def found(top: Path, pattern: str, **fields: object) -> wire.GrepReply:
    reply = wire.GrepReply()
    request = wire.GrepRequest(path=str(top), pattern=pattern, **fields)
    search.emit_matches(request, 100, "/x", reply.MergeFrom)
    return reply


def test_a_directory_that_lies_too_deep_is_counted_by_both_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_files, "DEPTH_LIMIT", 3)
    for name in ("1/2/near", "1/2/3/far"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    reply = found(tmp_path, "x")
    assert ([os.fsdecode(match.path) for match in reply.matches], reply.unsearched) == ([f"{tmp_path}/1/2/near"], 1)
    entries = wire.EntriesReply()
    search.emit_paths(wire.GlobRequest(path=str(tmp_path), pattern="**/far"), 10, "/x", entries.MergeFrom)
    assert (len(entries.entries), entries.unsearched) == (0, 1)


def test_a_directory_that_the_pattern_does_not_lead_into_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_files, "DEPTH_LIMIT", 1)
    (tmp_path / "a").mkdir()
    entries = wire.EntriesReply()
    search.emit_paths(wire.GlobRequest(path=str(tmp_path), pattern="*"), 10, "/x", entries.MergeFrom)
    assert (len(entries.entries), entries.unsearched) == (1, 0)


@pytest.mark.parametrize("pattern", ["needle", "need+le", "needle$|xyz", r"x{9}needle"])
def test_a_match_across_the_pieces_of_a_long_line_is_found_once(tmp_path: Path, pattern: str) -> None:
    # The line is split where a read of 1 MiB has filled 4 MiB.
    end = b"" if "$" in pattern else b"x" * _PIECE_BYTES
    (tmp_path / "f").write_bytes(b"x" * (_PIECE_BYTES - 3) + b"needle" + end + b"\nnext\n")
    assert [match.line for match in found(tmp_path, pattern).matches] == [1]
    assert [match.line for match in found(tmp_path, "^next$").matches] == [2]


def test_the_anchors_match_at_the_ends_of_a_long_line_only(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"y" + b"x" * (3 * _PIECE_BYTES) + b"z\n")
    assert [match.line for match in found(tmp_path, "^y").matches] == [1]
    assert [match.line for match in found(tmp_path, "z$").matches] == [1]
    for nowhere in ("^x", "x$", "^z", "[^z]$"):
        assert not found(tmp_path, nowhere).matches, nowhere


def test_a_long_line_that_matches_in_every_piece_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (3 * _PIECE_BYTES) + b"\nx\n")
    assert [match.line for match in found(tmp_path, "x").matches] == [1, 2]
    assert [match.line for match in found(tmp_path, "x", offset=1).matches] == [2]


async def test_removing_that_takes_too_long_says_that_part_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_files, "REMOVE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(tree_files, "_remove_tree", lambda _: os.read(os.pipe()[0], 1))
    with pytest.raises(Fault, match="ask again"):
        await tree_files.remove(wire.RemoveRequest(path=str(tmp_path), recursive=True))


def test_the_gateway_waits_longer_for_removing_than_the_daemon_takes() -> None:
    assert _REMOVE_TIMEOUT_S > tree_files.REMOVE_TIMEOUT_S >= 600
