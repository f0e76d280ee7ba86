"""What is kept of a background process' output, read by offset."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from sandbox.daemon.programs.background_process import _prefix
from sandbox.daemon.programs.process_io import OutputFile, RateLimit, StreamOutput


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def add(output: StreamOutput, data: bytes) -> None:
    # As pipes do it: one buffer, longer than the piece, used again for the next.
    output.add(bytearray(data + b"rubbish"), len(data))


@pytest.mark.parametrize("ring_bytes", [1, 7, 64, 1000])
@pytest.mark.parametrize("with_file", [False, True])
def test_every_byte_is_at_its_offset_or_reported_as_lost(ring_bytes: int, tmp_path: Path, *, with_file: bool) -> None:
    whole = bytes_of(3000)
    path = tmp_path / "out"
    output = StreamOutput(ring_bytes, (lambda: OutputFile(str(path), 1 << 20, "/workspace")) if with_file else None)
    choices = random.Random(ring_bytes)
    done = 0
    while done < len(whole):
        piece = whole[done : done + choices.choice([1, 2, 5, ring_bytes, ring_bytes + 1, 3 * ring_bytes])]
        add(output, piece)
        done += len(piece)
        for offset in {0, done // 2, max(0, done - ring_bytes - 1), max(0, done - ring_bytes), done - 1, done}:
            page = output.page(offset, 50)
            assert page.data == whole[page.offset : page.offset + len(page.data)]
            assert page.data or offset == done
            first = offset if with_file else max(offset, done - ring_bytes)
            assert (page.offset, page.size_bytes, page.end) == (first, done, False)
    assert output.ring_offset == done - ring_bytes
    report = output.report()
    assert (report.path, report.path_bytes) == ((str(path), done) if with_file else ("", 0))
    assert not with_file or path.read_bytes() == whole


def test_nothing_is_put_in_a_file_before_the_ring_overflows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    output = StreamOutput(10, lambda: OutputFile(str(path), 1 << 20, "/workspace"))
    add(output, b"0123456789")
    assert not path.exists()
    add(output, b"x")
    assert path.read_bytes() == b"0123456789x"


def test_the_end_is_reported_on_the_page_that_reaches_it() -> None:
    output = StreamOutput(10, None)
    add(output, b"abc")
    output.end()
    assert [output.page(offset, 2).end for offset in (0, 1, 2, 3, 99)] == [False, True, True, True, True]
    assert output.page(99, 2).offset == 99


def test_a_file_that_could_not_be_made_is_not_named_and_older_bytes_are_lost(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    output = StreamOutput(4, lambda: OutputFile(str(tmp_path / "out"), 1 << 20, "/workspace"))
    add(output, b"0123456789")
    page = output.page(0, 100)
    assert (page.offset, page.data, output.report().path) == (6, b"6789", "")


def test_a_file_stops_for_good_at_its_limit(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path / "out"), 5, "/workspace")
    file.append(b"abc")
    file.append(b"defg")
    file.append(b"h")
    assert (file.size_bytes, (tmp_path / "out").read_bytes()) == (5, b"abcde")
    assert file.read(0, 100) == b"abcde"
    assert file.read(3, 1) == b"d"
    assert file.read(5, 1) == b""


def test_a_full_disk_stops_a_file_for_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path / "out"), 1 << 20, "/workspace")
    file.append(b"abc")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
        file.append(b"def")
    file.append(b"ghi")
    assert (file.size_bytes, file.read(0, 100)) == (3, b"abc")


def test_another_file_under_the_name_is_not_read(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path / "out"), 1 << 20, "/workspace")
    file.append(b"abc")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "secret").rename(tmp_path / "out")
    assert file.read(0, 100) == b""


async def test_waiting_ends_with_a_byte_with_the_end_and_with_the_time() -> None:
    output = StreamOutput(10, None)
    waiting = [asyncio.ensure_future(output.wait_for(2, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    add(output, b"ab")  # not yet the byte at offset 2
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting.pop().cancel()  # one who hangs up takes nothing away from the others
    add(output, b"c")
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    await asyncio.wait_for(output.wait_for(3, 0.01), 10)
    last = asyncio.ensure_future(output.wait_for(3, 60))
    await asyncio.sleep(0)
    output.end()
    await asyncio.wait_for(last, 10)


class CountedSource:
    def __init__(self) -> None:
        self.pauses = 0
        self.resumed = asyncio.Event()

    def pause(self) -> None:
        self.pauses += 1
        self.resumed.clear()

    def resume(self) -> None:
        self.resumed.set()


async def test_a_source_that_is_too_fast_pauses_and_resumes_by_itself() -> None:
    pace, source = RateLimit(), CountedSource()
    pace.took(source, 100)
    assert not source.pauses
    for _ in range(20):
        pace.took(source, 256 * 1024)
    assert source.pauses
    await asyncio.wait_for(source.resumed.wait(), 10)


def test_arguments_are_reported_by_their_first_bytes() -> None:
    assert _prefix([b"a", b"b" * 5000, b"c"]) == [b"a", b"b" * 4095]
    assert len(_prefix([b"a"] + [b""] * 10_000)) == 4096
