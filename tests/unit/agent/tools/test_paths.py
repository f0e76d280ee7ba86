"""One place makes the path that is judged and opened."""

import pytest

from agent.errors import InvalidPath
from agent.tools.paths import resolve


@pytest.mark.parametrize(
    "path, resolved",
    [
        ("a.txt", "/workspace/a.txt"),
        ("/a//b/./c/", "/a/b/c"),
        ("../etc/passwd", "/etc/passwd"),
        ("/workspace/../../..", "/"),
        ("//etc/passwd", "/etc/passwd"),
        (".", "/workspace"),
        ("a\udcffb", "/workspace/a\udcffb"),
    ],
)
def test_paths_become_absolute_and_normal(path: str, resolved: str) -> None:
    assert resolve(path) == resolved
    assert resolve(resolved) == resolved


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_empty_and_nul_are_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        resolve(path)
