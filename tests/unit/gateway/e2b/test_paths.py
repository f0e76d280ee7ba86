from __future__ import annotations

import pytest

from gateway.e2b.paths import path_of
from gateway.errors import InvalidArgument


@pytest.mark.parametrize(
    "asked, inside, shown",
    [
        ("", "/workspace", "/home/user"),
        (".", "/workspace", "/home/user"),
        ("~", "/workspace", "/home/user"),
        ("a/b", "/workspace/a/b", "/home/user/a/b"),
        ("~/a", "/workspace/a", "/home/user/a"),
        ("/home/user", "/workspace", "/home/user"),
        ("/home/user/a", "/workspace/a", "/home/user/a"),
        ("/workspace/a", "/workspace/a", "/workspace/a"),
        ("/tmp/a/", "/tmp/a", "/tmp/a"),
        ("a/../b", "/workspace/b", "/home/user/b"),
        ("../other/x", "/home/other/x", "/home/other/x"),
        ("/home/user/../../etc/passwd", "/etc/passwd", "/etc/passwd"),
        ("/home/username", "/home/username", "/home/username"),
        ("/../workspace/a", "/workspace/a", "/workspace/a"),
    ],
)
def test_the_home_directory_is_the_workspace(asked: str, inside: str, shown: str) -> None:
    path = path_of(asked)
    assert (path.inside, path.shown) == (inside, shown)


def test_a_nul_is_in_no_path() -> None:
    with pytest.raises(InvalidArgument, match="NUL"):
        path_of("a\0b")
