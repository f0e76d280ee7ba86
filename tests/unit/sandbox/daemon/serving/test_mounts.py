"""What the kernel's list of mounts says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.daemon.serving import posture
from sandbox.daemon.serving.posture import MOUNTS_LIMIT, parse_mounts, read_mounts
from sandbox.v1 import channel_pb2 as wire

LINES = rb"""75 50 0:39 / / ro,relatime master:2 - overlay overlay rw,lowerdir=/l/ro:/l/b
76 75 0:42 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
93 75 0:48 / /tmp rw,nosuid,nodev,relatime shared:1 master:4 - tmpfs tmpfs rw,size=1024k
55 76 0:49 / /proc/acpi rw,relatime - tmpfs tmpfs ro
8 8 0:8 / /with\040space\134 rw  - 9p none rw,trans=fd,ro_not=1
9 8 0:8 / /caf\303\251\377 ro - ext4 /dev/vda rw
"""


def test_each_line_becomes_a_mount() -> None:
    root, proc, tmp, acpi, spaced, odd = parse_mounts(LINES)
    assert root == wire.Mount(path="/", type="overlay", read_only=True)
    assert proc == wire.Mount(path="/proc", type="proc", no_suid=True, no_dev=True, no_exec=True)
    assert tmp == wire.Mount(path="/tmp", type="tmpfs", no_suid=True, no_dev=True)
    assert acpi.read_only, "its file system is, whatever the mount says"
    assert spaced == wire.Mount(path="/with space\\", type="9p")
    assert odd == wire.Mount(path="/café\ufffd", type="ext4", read_only=True)


def test_there_are_512_at_most_and_all_of_them_fit_a_frame() -> None:
    line = b"1 1 0:1 / /" + b"x" * 4000 + b" rw - " + b"y" * 4000 + b" none rw\n"
    found = parse_mounts(line * 600)
    assert len(found) == MOUNTS_LIMIT
    assert len(wire.Posture(mounts=found).SerializeToString()) < 1024 * 1024


@pytest.mark.parametrize(
    "mode, uid, gid, writable",
    [
        (0o755, 0, 0, False),
        (0o777, 0, 0, True),
        (0o770, 0, 5, True),
        (0o770, 0, 6, False),
        (0o500, 7, 0, True),  # its owner may change that
    ],
)
def test_mounts_report_whether_the_tool_user_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, writable: bool
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    top.chmod(mode)
    os.chown(top, uid, gid)
    lines = b"1 1 0:1 / %s rw - tmpfs none rw\n1 1 0:1 / %s ro - tmpfs none rw\n" % ((bytes(top),) * 2)
    listed = parse_mounts(lines)
    monkeypatch.setattr(posture, "parse_mounts", lambda _text: listed)
    assert [mount.tool_writable for mount in read_mounts(7, [5])] == [writable, False]


def test_devices_that_keep_nothing_are_not_writable_nor_what_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    places = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/no/such", "/dev/ptmx")
    listed = parse_mounts(b"".join(b"1 1 0:1 / %s rw - tmpfs none rw\n" % place.encode() for place in places))
    monkeypatch.setattr(posture, "parse_mounts", lambda _text: listed)
    assert [mount.path for mount in read_mounts(7, [5]) if mount.tool_writable] == ["/dev/ptmx"]
