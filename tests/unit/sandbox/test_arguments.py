"""Paths, pages and patterns as both file systems take them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.arguments import checked_lines, checked_page, checked_path, checked_pattern
from sandbox.errors import InvalidArgument, InvalidPath


@pytest.mark.parametrize(
    "path, plain",
    [
        ("/workspace/a", "/workspace/a"),
        ("//workspace///a/", "/workspace/a"),
        ("/workspace/./a/.", "/workspace/a"),
        ("/", "/"),
        ("/workspace/..a", "/workspace/..a"),
        ("/workspace/ñ", "/workspace/ñ"),
    ],
)
def test_a_path_is_made_plain(path: str, plain: str) -> None:
    assert checked_path(path) == plain


@pytest.mark.parametrize(
    "path",
    ["", "a", "workspace/a", "/workspace/../etc", "/..", "/a\0b", "/" + "x" * 256, "/x" * 2100, "/\udcff"],
)
def test_a_path_that_is_not_plain_and_absolute_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        checked_path(path)


@given(st.text(max_size=200))
def test_whatever_is_accepted_is_absolute_without_dots_and_stays_the_same(text: str) -> None:
    try:
        path = checked_path(text)
    except InvalidPath:
        return
    assert path.startswith("/")
    assert not {"", ".", ".."} & set(path[1:].split("/")) or path == "/"
    assert checked_path(path) == path


def test_a_page_is_cut_to_what_one_frame_takes() -> None:
    assert checked_page(0, 10**9) == 10_000
    assert checked_lines(0, 10**9, 1) == 100_000


@pytest.mark.parametrize("offset, limit", [(-1, 1), (0, 0), (0, -5)])
def test_a_page_of_nothing_or_from_before_the_start_is_refused(offset: int, limit: int) -> None:
    with pytest.raises(InvalidArgument):
        checked_page(offset, limit)
    with pytest.raises(InvalidArgument):
        checked_lines(offset, limit, 100)


@pytest.mark.parametrize("limit_bytes", [0, -1, 2**30])
def test_a_page_of_lines_has_bytes_within_bounds(limit_bytes: int) -> None:
    with pytest.raises(InvalidArgument):
        checked_lines(0, 1, limit_bytes)


@pytest.mark.parametrize("pattern", ["", "a\0b", "x" * 5000, "\udcff"])
def test_a_pattern_that_is_no_text_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        checked_pattern(pattern)
