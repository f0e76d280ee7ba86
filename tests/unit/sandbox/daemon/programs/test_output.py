"""Kept output and the counting under it."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.daemon.programs.output import (
    KEPT_LIMIT_BYTES,
    PIECES_LIMIT,
    KeptOutput,
    count_characters,
    prefix_length,
    suffix_start,
)
from sandbox.daemon.programs.process_io import OutputFile
from sandbox.daemon.programs.spill import Spill
from sandbox.v1 import channel_pb2 as wire

Pieces = list[tuple[wire.OutputStream, bytes]]
OUT, ERR = wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR


def report(
    pieces: Pieces, tmp_path: Path, *, limit: int = 100, head: int = 10, tail: int = 10, spill_bytes: int = 1 << 20
) -> tuple[wire.ExecReply, Path, bytes]:
    """Return the reply for pieces of output, and the file they were evicted to."""
    file = tmp_path / "out" / "spill.txt"
    limits = wire.OutputLimit(limit_chars=limit, head_chars=head, tail_chars=tail)
    kept = KeptOutput(limits, lambda: Spill(str(file), spill_bytes, str(tmp_path)))
    streamed = b"".join(kept.add(stream, bytearray(data), len(data)) for stream, data in pieces)
    reply = wire.ExecReply()
    kept.report(reply, streamed=False)
    return reply, file, streamed


def text(pieces: Iterable[wire.Output]) -> bytes:
    return b"".join(piece.data for piece in pieces)


@given(st.text(), st.integers(0, 20))
def test_a_prefix_of_text_has_exactly_the_characters_asked_for(string: str, characters: int) -> None:
    data = string.encode()
    assert data[: prefix_length(data, characters)].decode() == string[:characters]


@given(st.text(), st.integers(1, 20))
def test_a_suffix_of_text_has_exactly_the_characters_asked_for(string: str, characters: int) -> None:
    data = string.encode()
    assert data[suffix_start(data, characters) :].decode() == string[-characters:]


@given(st.binary())
def test_every_byte_that_is_no_continuation_begins_a_character(data: bytes) -> None:
    assert count_characters(data) == sum(byte & 0xC0 != 0x80 for byte in data)


def test_output_at_the_limit_is_kept_whole_and_one_more_is_evicted(tmp_path: Path) -> None:
    reply, file, _ = report([(OUT, b"x" * 100)], tmp_path)
    assert text(reply.output) == b"x" * 100
    assert not reply.HasField("evicted")
    assert not file.exists()
    reply, file, streamed = report([(OUT, b"x" * 101)], tmp_path)
    assert reply.HasField("evicted")
    assert streamed == b"x" * 100
    assert file.read_bytes() == b"x" * 101


def test_the_limit_counts_characters_not_bytes(tmp_path: Path) -> None:
    reply, _, _ = report([(OUT, "é".encode() * 100)], tmp_path)
    assert not reply.HasField("evicted")
    reply, _, _ = report([(OUT, "é".encode() * 101)], tmp_path)
    assert text(reply.output).decode() == text(reply.tail).decode() == "é" * 10


@given(pieces=st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.binary(min_size=1, max_size=60)), max_size=30))
def test_whatever_arrives_the_file_is_the_bytes_and_head_and_tail_are_its_ends(
    tmp_path_factory: pytest.TempPathFactory, pieces: Pieces
) -> None:
    whole = b"".join(data for _, data in pieces)
    reply, file, streamed = report(pieces, tmp_path_factory.mktemp("spill"), limit=40, head=7, tail=9)
    assert reply.output_bytes == len(whole)
    # What the gateway allows, also of bytes that are no characters.
    assert len(streamed) <= 4 * 40
    assert len(text(reply.output)) <= 4 * (40 + 7)
    assert len(text(reply.tail)) <= 4 * 9
    if not reply.HasField("evicted"):
        assert text(reply.output) == whole
        return
    assert file.read_bytes() == whole
    assert whole.startswith(text(reply.output))
    assert whole.endswith(text(reply.tail))
    assert len(text(reply.output)) + len(text(reply.tail)) <= len(whole)
    assert count_characters(text(reply.output)) <= 7
    assert count_characters(text(reply.tail)) <= 9
    assert reply.evicted.sha256 == hashlib.sha256(whole).hexdigest()
    assert reply.evicted.lines == whole.count(b"\n") + (not whole.endswith(b"\n"))
    assert not reply.evicted.incomplete


def test_bytes_that_are_no_characters_are_bounded_too(tmp_path: Path) -> None:
    reply, file, streamed = report([(OUT, b"\x80" * 3_000)] * 8, tmp_path, limit=1_000)
    assert len(streamed) == 4_000
    assert reply.evicted.size_bytes == file.stat().st_size == 24_000
    assert len(text(reply.output)) == len(text(reply.tail)) == 40


def test_alternating_between_the_streams_byte_by_byte_still_fits_a_frame(tmp_path: Path) -> None:
    pieces = [(OUT if n % 2 else ERR, b"x") for n in range(100_000)]
    reply, _, _ = report(pieces, tmp_path, limit=200_000, head=20_000, tail=20_000)
    assert reply.HasField("evicted")
    assert reply.ByteSize() < KEPT_LIMIT_BYTES


def test_no_output_has_more_pieces_than_the_limit(tmp_path: Path) -> None:
    pieces = [(OUT if n % 2 else ERR, b"x") for n in range(2 * PIECES_LIMIT)]
    whole, _, _ = report(pieces[: PIECES_LIMIT - 1], tmp_path, limit=200_000)
    assert (len(whole.output), whole.HasField("evicted")) == (PIECES_LIMIT - 1, False)
    evicted, _, streamed = report(pieces, tmp_path, limit=200_000, head=100_000, tail=0)
    assert len(evicted.output) == len(streamed) == PIECES_LIMIT


@pytest.mark.parametrize("data", [b"x", b"\x80"], ids=["characters", "bytes that are none"])
def test_no_tail_has_more_pieces_than_its_characters_have_bytes(tmp_path: Path, data: bytes) -> None:
    reply, _, _ = report([(OUT if n % 2 else ERR, data) for n in range(10_000)], tmp_path, limit=20, tail=10)
    assert len(reply.tail) == (10 if data.isascii() else 40)


def test_past_the_spill_limit_the_file_is_marked_incomplete_and_stays_within_it(tmp_path: Path) -> None:
    reply, file, _ = report([(OUT, b"line\n" * 100)], tmp_path, spill_bytes=7)
    assert file.read_bytes() == b"line\nli"
    assert (reply.evicted.size_bytes, reply.evicted.lines, reply.evicted.incomplete) == (7, 2, True)


@pytest.mark.parametrize("path", ["", "relative", "/dev/null/no"])
def test_a_spill_that_cannot_be_made_is_incomplete_and_fails_nothing(tmp_path: Path, path: str) -> None:
    spill = Spill(path, 1000, str(tmp_path))
    spill.write(b"data", 4)
    assert spill.close().incomplete


def test_a_spill_without_a_digest_is_not_written_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hashlib", "_sha2", "_sha256"):
        monkeypatch.setitem(sys.modules, name, None)  # as when there is no descriptor left to load it with
    spill = Spill(f"{tmp_path}/a.txt", 1000, str(tmp_path))
    spill.write(b"data", 4)
    evicted = spill.close()
    assert (evicted.size_bytes, evicted.lines, evicted.incomplete) == (0, 0, True)
    assert evicted.sha256 == hashlib.sha256().hexdigest()
    assert not (tmp_path / "a.txt").exists()


def test_a_digest_that_python_has_of_its_own_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hashlib", None)
    spill = Spill(f"{tmp_path}/a.txt", 1000, str(tmp_path))
    spill.write(b"data", 4)
    assert spill.close().sha256 == hashlib.sha256(b"data").hexdigest()


def test_a_directory_that_could_not_be_hidden_is_hidden_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert not Spill(f"{tmp_path}/.airlock/output/a.txt", 1000, str(tmp_path)).close().incomplete
    assert not (tmp_path / ".airlock" / ".gitignore").exists()
    OutputFile(f"{tmp_path}/.airlock/processes/a.stdout", 1000, str(tmp_path)).close()
    assert (tmp_path / ".airlock" / ".gitignore").read_bytes() == b"*\n"


def test_the_private_directory_is_hidden_from_git(tmp_path: Path) -> None:
    Spill(f"{tmp_path}/.airlock/output/a.txt", 1000, str(tmp_path)).close()
    assert (tmp_path / ".airlock" / ".gitignore").read_bytes() == b"*\n"
