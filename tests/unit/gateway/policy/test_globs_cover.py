"""Whether one glob holds another: examples, and paths at random that must never prove a yes wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.globs import compile_glob, covers, may_meet, sample_path
from tests.examples import examples

_PARTS = st.sampled_from(["a", "b", "ab", "*", "?", "a*", "*b", "[ab]", "[!a]", "*a*", "**", "??", "[*]"])
_GLOBS = st.lists(_PARTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
_PATHS = st.lists(st.text("ab*", min_size=1, max_size=3), max_size=5).map(lambda parts: "/" + "/".join(parts))


@pytest.mark.parametrize(
    "a, b",
    [
        ("/**", "/"),
        ("/**", "/workspace/**"),
        ("/workspace/**", "/workspace"),
        ("/workspace/**", "/workspace/*/src/**"),
        ("/workspace/**/*.py", "/workspace/src/**/*.py"),
        ("/workspace/**/*.py", "/workspace/test_*.py"),
        ("/workspace/*", "/workspace/.git"),
        ("/a/?", "/a/[bc]"),
        ("/a/[b-d]", "/a/c"),
        ("/a/**/b", "/a/**/c/b"),
    ],
)
def test_a_glob_holds_a_narrower_one(a: str, b: str) -> None:
    assert covers(compile_glob(a), compile_glob(b))


@pytest.mark.parametrize(
    "a, b",
    [
        ("/workspace/*", "/workspace/**"),
        ("/workspace/src/**", "/workspace/**"),
        ("/workspace/**/*.py", "/workspace/**"),
        ("/workspace/?", "/workspace/*"),
        ("/workspace/**/x", "/workspace"),
        ("/a/[b-d]", "/a/e"),
        ("/a/*b", "/a/*"),
        ("/a/[!b]", "/a/?"),
        ("/", "/**"),
    ],
)
def test_a_glob_does_not_hold_a_wider_or_another_one(a: str, b: str) -> None:
    assert not covers(compile_glob(a), compile_glob(b))


@examples(500)
@given(_GLOBS, _GLOBS, st.lists(_PATHS, min_size=1, max_size=20))
def test_what_is_held_is_matched_whatever_the_path(a: str, b: str, paths: list[str]) -> None:
    first, second = compile_glob(a), compile_glob(b)
    if covers(first, second):
        for path in [*paths, sample_path(second)]:
            assert path is None or not second.matches(path) or first.matches(path), (a, b, path)


@pytest.mark.parametrize(
    "a, b",
    [
        ("/workspace/**", "/workspace"),
        ("/workspace/**/.env", "/workspace/.en*"),
        ("/workspace/**/.env", "/workspace/*/.env"),
        ("/workspace/**/.env", "/workspace/[!.]*/**"),
        ("/a/*b", "/a/b*"),
        ("/a/[b-d]", "/a/?"),
        ("/a/[b-d]", "/a/[c-e]"),
        ("/**/x/**", "/a/**/y"),
        ("/**", "/"),
    ],
)
def test_globs_with_a_path_in_common_meet(a: str, b: str) -> None:
    assert may_meet(compile_glob(a), compile_glob(b))
    assert may_meet(compile_glob(b), compile_glob(a))


@pytest.mark.parametrize(
    "a, b",
    [
        ("/workspace/**/.env", "/workspace/*.py"),
        ("/workspace/**/.env", "/workspace/[!.]*"),
        ("/workspace/secret/**", "/workspace/src/**"),
        ("/workspace/secret/**", "/workspace/*.py"),
        ("/a/*", "/a/*/*"),
        ("/a/[b-d]", "/a/e"),
        ("/a/b*", "/a/c*"),
        ("/a/**/b", "/a/**/c"),
        ("/", "/*"),
    ],
)
def test_globs_without_a_path_in_common_do_not_meet(a: str, b: str) -> None:
    assert not may_meet(compile_glob(a), compile_glob(b))
    assert not may_meet(compile_glob(b), compile_glob(a))


@examples(800)
@given(_GLOBS, _GLOBS, st.lists(_PATHS, min_size=1, max_size=20))
def test_globs_that_match_one_path_meet(a: str, b: str, paths: list[str]) -> None:
    first, second = compile_glob(a), compile_glob(b)
    samples = [path for glob in (first, second) if (path := sample_path(glob)) is not None]
    if any(first.matches(path) and second.matches(path) for path in (*paths, *samples)):
        assert may_meet(first, second), (a, b)
    if covers(first, second):
        assert may_meet(first, second), (a, b)


@given(_GLOBS)
def test_a_glob_holds_itself_and_is_held_by_everything(glob: str) -> None:
    assert covers(compile_glob(glob), compile_glob(glob))
    assert covers(compile_glob("/**"), compile_glob(glob))


@given(_GLOBS)
def test_the_sample_of_a_glob_is_a_path_that_it_matches(glob: str) -> None:
    path = sample_path(compile_glob(glob))
    assert path is not None
    assert compile_glob(glob).matches(path)


def test_very_long_globs_are_compared_in_bounded_time() -> None:
    long = "/" + "?" * 1000
    assert not covers(compile_glob(long + "a"), compile_glob(long + "b"))
    assert covers(compile_glob(long), compile_glob(long))
