"""The files of a copied volume, given to another user: what is changed of them, and what is removed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sandbox.daemon import volume_adopter


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    top = tmp_path / "volume"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").write_bytes(b"1")
    (top / "closed" / "inner" / "file").chmod(0o4751)
    (top / "twice").hardlink_to(top / "closed" / "inner" / "file")
    (top / "way").symlink_to("/etc/passwd")
    (top / "gone").symlink_to("/nowhere")
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(top / "socket"))
    (top / "sticky").mkdir(mode=0o755)
    (top / "sticky").chmod(0o3770)
    (top / "closed").chmod(0)
    top.chmod(0o600)
    return top


def test_every_file_gets_the_user_and_no_link_is_followed(volume: Path) -> None:
    mine = os.geteuid() == 0
    user = group = 12345 if mine else os.getuid()
    passwd = os.stat("/etc/passwd")
    volume_adopter.main(str(volume), user, group)
    assert os.stat("/etc/passwd") == passwd
    assert stat.S_IMODE(volume.stat().st_mode) == 0o711
    assert stat.S_IMODE((volume / "closed").stat().st_mode) == 0
    (volume / "closed").chmod(0o700)
    found = [volume, *volume.rglob("*")]
    assert sorted(path.name for path in found[1:]) == ["closed", "file", "gone", "inner", "sticky", "twice", "way"]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in found} == {(user, group)}
    assert stat.S_IMODE((volume / "twice").stat().st_mode) == 0o751
    assert stat.S_IMODE((volume / "sticky").stat().st_mode) == 0o770


def test_extended_attributes_are_removed(volume: Path) -> None:
    marked = volume / "closed" / "inner" / "file"
    (volume / "closed").chmod(0o700)
    try:
        os.setxattr(marked, "user.of-tool-code", b"1")
        os.setxattr(volume, "user.of-tool-code", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    volume_adopter.main(str(volume), os.getuid(), os.getgid())
    assert os.listxattr(marked) == os.listxattr(volume) == []


def test_what_is_deeper_than_a_path_can_be_long_is_removed(volume: Path) -> None:
    here = os.open(volume, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    volume_adopter.main(str(volume), os.getuid(), os.getgid())
    deepest = max((Path(path) for path, _, _ in os.walk(volume)), key=lambda path: len(path.parts))
    assert len(os.fsencode(deepest.relative_to(volume))) == 18 * 201 - 1, "the first of 3,584 bytes or more"


def test_a_file_system_s_own_directory_stays_its_own(volume: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's is one")
    (volume / "lost+found").mkdir()
    volume_adopter.main(str(volume), 12345, 12345)
    assert (volume / "lost+found").stat().st_uid == 0
