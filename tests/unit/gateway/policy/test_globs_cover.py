"""Whether one glob holds another: examples, and paths at random that must never prove a yes wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.globs import compile_glob, tree_glob
from gateway.policy.globs_cover import covers, may_meet, sample_path
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
    "glob, directory",
    [
        ("/workspace/**", "/workspace"),
        ("/workspace/**/.env", "/workspace/src"),
        ("/workspace/*/.env", "/workspace/src"),
        ("/workspace/src/.env", "/workspace"),
        ("/a/[b-d]", "/a/c"),
        ("/a/*b/x", "/a/bb"),
        ("/a/[*]/b", "/a/*"),
        ("/**/x/**", "/a/y"),
        ("/**", "/"),
        ("/a", "/"),
    ],
)
def test_a_glob_meets_a_directory_that_may_hold_what_it_matches(glob: str, directory: str) -> None:
    assert may_meet(compile_glob(glob), tree_glob(directory))


@pytest.mark.parametrize(
    "glob, directory",
    [
        ("/workspace/secret/**", "/workspace/src"),
        ("/workspace/*.py", "/workspace/src"),
        ("/a/*", "/a/b/c"),
        ("/a/[b-d]/x", "/a/e"),
        ("/a/b*/x", "/a/c"),
        ("/a/[*]", "/a/b"),
        ("/", "/a"),
    ],
)
def test_a_glob_does_not_meet_a_directory_that_it_matches_nothing_in(glob: str, directory: str) -> None:
    assert not may_meet(compile_glob(glob), tree_glob(directory))


@examples(800)
@given(_GLOBS, _PATHS, st.lists(_PATHS, min_size=1, max_size=20))
def test_a_glob_that_matches_a_path_below_a_directory_meets_it(text: str, directory: str, below: list[str]) -> None:
    glob, tree = compile_glob(text), tree_glob(directory)
    paths = [directory, *(f"{directory.rstrip('/')}{path}".rstrip("/") or "/" for path in below)]
    if any(glob.matches(path) for path in paths) or covers(glob, tree):
        assert may_meet(glob, tree), (text, directory)


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
