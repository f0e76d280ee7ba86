"""What a daemon says of a workspace that it settled: read with bounds, whatever comes."""

from __future__ import annotations

import socket

import pytest

from sandbox.client import remote_archive
from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.errors import DaemonLost, SandboxUnavailable


def said(data: bytes) -> WorkspaceCounts:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return remote_archive.settled(ours)


def test_counts_are_read() -> None:
    assert said(b"0 5 4 300 2 1") == WorkspaceCounts(entries=5, files=4, size_bytes=300, skipped=2, stripped=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"0 1 2 3 4",
        b"0 5 4 3 2 1 0",
        b"0 5 4 3 2 -1",
        b"0 5 4 3 " + b"9" * 400 + b" 1",
        b"1 5 4 3 2 1",
        b"-0 5 4 3 2 1",
        "0 5 4 3 2 ٣".encode(),
        b"0 4 5 3 2 1",
        b"0 4 3 3 2 5",
        b"0 4 3 99999999999999999999 2 1",
        b"x" * 100_000,
        b"\xff\xff",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(SandboxUnavailable, match="could not be written to its disk"):
        said(data)


def test_a_daemon_that_does_not_answer_in_time_is_not_one_that_is_lost_which_would_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_archive, "_SETTLED_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"0 5")
        with pytest.raises(SandboxUnavailable, match=r"not written to its disk within 0 s"):
            remote_archive.settled(ours)


def test_a_connection_that_breaks_is_a_daemon_that_is_lost() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    with pytest.raises(DaemonLost):
        remote_archive.settled(ours)


def test_why_it_could_not_be_settled_is_shown_in_one_line() -> None:
    with pytest.raises(SandboxUnavailable, match=r"to its disk: Input/output error.{0,8}$"):
        said(b"5 Input/output error\n")
