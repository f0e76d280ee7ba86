"""The tar stream of a daemon that lies, or of tool code that knows how it is read: it ends soon, and in one way."""

from __future__ import annotations

import itertools
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest

from sandbox.client import remote_archive
from sandbox.engines import workspace_archive
from sandbox.engines.workspace_archive import ArchiveBroken, WorkspaceEntry, bounded, read_tar
from sandbox.errors import DaemonLost, SandboxUnavailable

MIB = 1024 * 1024
END = bytes(1024)


def header(type_: bytes, size_bytes: int = 0, name: str = "workspace/a", target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = type_, size_bytes, target
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (length, key, value)


def extended(*records: bytes, type_: bytes = tarfile.XHDTYPE) -> bytes:
    data = b"".join(records)
    return header(type_, len(data), "././@PaxHeader") + padded(data)


def entries(pieces: Iterable[bytes]) -> list[WorkspaceEntry]:
    return [entry for entry, _ in read_tar(pieces, "workspace")]


def refused_within(pieces: Iterable[bytes], limit: int) -> None:
    """Assert that a stream is refused before so many of its pieces were read."""
    first = itertools.islice(pieces, limit)
    with pytest.raises(ArchiveBroken):
        entries(first)
    assert next(first, None), "all of it was read"


@pytest.mark.parametrize("type_", [b"x", b"g", b"X", b"L", b"K"])
def test_an_extended_header_of_any_size_is_not_read_into_memory(type_: bytes) -> None:
    refused_within(itertools.chain([header(type_, 1 << 40)], itertools.repeat(bytes(MIB))), 3)


def test_extended_headers_one_after_another_are_refused_at_the_second() -> None:
    refused_within(itertools.repeat(header(tarfile.XHDTYPE)), 4)


@pytest.mark.parametrize("type_", [b"g", b"X", b"L", b"K", b"S", b"7", b"D", b"?"])
def test_a_member_of_a_type_that_no_workspace_has_is_refused(type_: bytes) -> None:
    with pytest.raises(ArchiveBroken):
        entries([header(type_, 512), bytes(512), header(tarfile.REGTYPE), END])


@pytest.mark.parametrize(
    "records",
    [
        record(b"mtime", b"inf"),
        record(b"mtime", b"nan"),
        record(b"mtime", b"yesterday"),
        record(b"size", b"1e400"),
        record(b"size", b"-512"),
        record(b"size", b"9" * 9000),
        b"0 path=a\n",
        b"-9 path=a\n",
        b"99 path=a\n",
        b"3 path=a\n",
        b"8 path=a\n",
        b"path=a\n",
        b"9" * 9000,
    ],
)
def test_an_extended_header_that_says_nothing_sensible_is_no_workspace(records: bytes) -> None:
    with pytest.raises(ArchiveBroken):
        entries([extended(records), header(tarfile.REGTYPE), END])


@pytest.mark.parametrize("size", [-512, -(1 << 62)])
def test_a_size_below_nothing_is_no_workspace(size: int) -> None:
    member = tarfile.TarInfo("workspace/a")
    block = bytearray(member.tobuf())
    block[124:136] = b"\xff" + (size + (1 << 88)).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(ArchiveBroken):
        entries([bytes(block), END])


def test_a_time_that_no_file_system_has_is_one_that_can_be_written_again() -> None:
    far = [extended(record(b"mtime", time)) + header(tarfile.REGTYPE) for time in (b"1e300", b"-1e300", b"7.9")]
    assert [entry.modified_s for entry in entries([*far, END])] == [2**53, -(2**53), 7]


def test_records_of_digits_take_no_longer_than_others() -> None:
    def took_s(value: bytes) -> float:
        stream = (extended(record(b"linkpath", value)) + header(tarfile.SYMTYPE)) * 5 + END
        began_s = time.perf_counter()
        assert len(entries([stream])) == 5
        return time.perf_counter() - began_s

    assert min(took_s(b"1" * 30_000) for _ in range(3)) < 100 * min(took_s(b"a" * 30_000) for _ in range(3))


def test_what_follows_the_end_is_refused_unless_it_is_zeros() -> None:
    assert entries([header(tarfile.DIRTYPE), END, bytes(8192)])
    for rest in (b"", b"x", bytes(700) + b"x"):
        with pytest.raises(ArchiveBroken):
            entries([header(tarfile.DIRTYPE), bytes(512), rest])


def misnamed() -> Iterator[bytes]:
    yield header(tarfile.REGTYPE, 1 << 40, "elsewhere/a")
    yield from itertools.repeat(bytes(MIB))


def ended() -> Iterator[bytes]:
    yield header(tarfile.DIRTYPE)
    yield from itertools.repeat(bytes(MIB))


@pytest.mark.parametrize("pieces", [misnamed, ended])
def test_bytes_that_are_not_taken_end_with_what_a_workspace_may_have(
    monkeypatch: pytest.MonkeyPatch, pieces: Iterator[bytes]
) -> None:
    monkeypatch.setattr(workspace_archive, "_HEADERS_BYTES", MIB)
    with pytest.raises(SandboxUnavailable, match="a workspace of 1,048,576 bytes takes 2,097,152 bytes") as caught:
        entries(bounded(pieces(), MIB))
    assert not isinstance(caught.value, ArchiveBroken), "it is not tried again"


class Clock:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_stream_that_comes_slowly_ends_and_the_time_of_its_reader_does_not_count() -> None:
    clock = Clock()

    def slowly() -> Iterator[bytes]:
        while True:
            clock.s += 10.0
            yield b"x" * (MIB // 2)

    came_bytes = 0
    with pytest.raises(SandboxUnavailable, match="given up"):
        for piece in bounded(slowly(), MIB, now_s=clock):
            came_bytes += len(piece)
            clock.s += 1000.0
    assert 100 * MIB < came_bytes < 200 * MIB, "of a workspace of 1 MiB and headers of 3 GiB, at 1 MiB/s"


@contextmanager
def daemon(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    here, there = socket.socketpair()

    def run() -> None:
        with suppress(OSError):  # nobody reads
            work(there)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with here:
            yield here
    finally:
        thread.join()
        there.close()


def test_a_daemon_that_sent_much_may_not_be_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_archive, "_SILENCE_S", 0.05)
    ended = threading.Event()

    def work(there: socket.socket) -> None:
        there.sendall(bytes(8 * 1024 * 1024))
        ended.wait(30)

    with daemon(work) as here:
        came = remote_archive.received(here)
        try:
            with pytest.raises(DaemonLost):
                sum(map(len, came))
            assert not ended.is_set()
        finally:
            ended.set()


def test_a_daemon_that_sends_a_byte_now_and_then_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_archive, "_ANSWER_S", 0.2)

    def work(there: socket.socket) -> None:
        for _ in itertools.repeat(None, 3000):
            there.sendall(b"x")
            time.sleep(0.01)

    with daemon(work) as here, pytest.raises(DaemonLost):
        sum(map(len, remote_archive.received(here)))
