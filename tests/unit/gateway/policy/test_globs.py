"""Path globs."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.globs import compile_glob, may_meet, path_problem, tree_glob
from tests.examples import examples


@pytest.mark.parametrize(
    "glob,matching,not_matching",
    [
        ("/workspace/**", ["/workspace", "/workspace/a", "/workspace/a/b/.c"], ["/", "/workspaces", "/workspace2/a"]),
        ("/workspace/*", ["/workspace/a", "/workspace/.env"], ["/workspace", "/workspace/a/b"]),
        ("/a/*.py", ["/a/x.py", "/a/.py"], ["/a/x.pyc", "/a/b/x.py", "/a/x.py/y"]),
        ("/a/**/x", ["/a/x", "/a/b/x", "/a/b/c/x"], ["/a/b", "/ax", "/a/x/y"]),
        ("/**", ["/", "/a", "/a/b"], []),
        ("/", ["/"], ["/a"]),
        ("/**/.env", ["/.env", "/a/.env"], ["/a/b.env", "/.env/a"]),
        ("/a?c", ["/abc"], ["/ac", "/a/c", "/abbc"]),
        ("/[ab]x", ["/ax", "/bx"], ["/cx", "/x"]),
        ("/[!ab]x", ["/cx"], ["/ax", "//x"]),
        ("/[^a]", ["/b"], ["/a", "/"]),
        ("/[a-c]", ["/b"], ["/d", "/-"]),
        ("/[*]", ["/*"], ["/a"]),
        ("/[]]", ["/]"], ["/["]),
        ("/[!]a]x", ["/bx"], ["/]x", "/ax"]),
        ("/a.b", ["/a.b"], ["/axb", "/a.b\n"]),
        ("/a/**/b/**/c", ["/a/b/c", "/a/x/b/y/z/c"], ["/a/c", "/a/b"]),
        ("/**/b/**", ["/b", "/a/b/c"], ["/a", "/ab/c"]),
        ("/x*y*z", ["/xyz", "/xayaz", "/xyyzz"], ["/xzy", "/xy/z"]),
    ],
)
def test_a_glob_matches_these_paths_and_not_those(glob: str, matching: list[str], not_matching: list[str]) -> None:
    compiled = compile_glob(glob)
    assert [path for path in matching if not compiled.matches(path)] == []
    assert [path for path in not_matching if compiled.matches(path)] == []


@pytest.mark.parametrize(
    "glob,message",
    [
        ("workspace/**", "not absolute"),
        ("", "not absolute"),
        ("/a//b", "empty"),
        ("/a/", "empty"),
        ("/a/../b", '".."'),
        ("/a/./b", '"."'),
        ("/a**", "stand alone"),
        ("/a\\*", "[*]"),
        ("/a\0", "NUL"),
        ("/[a", "never closed"),
        ("/[]", "never closed"),
        ("/[z-a]", "backwards"),
        ("/[a--b]", "range"),
        ("/" + "a*" * 9, "eight stars"),
        ("/a" + "/**/b" * 9, "eight **"),
    ],
)
def test_a_bad_glob_is_refused_with_what_is_wrong(glob: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        compile_glob(glob)


@pytest.mark.parametrize("path", ["", "a", "/a/../b", "/..", "/a//b", "/a/", "//", "/a/.", "/a\0b", None, 1, b"/a"])
def test_a_path_that_is_not_plain_has_a_problem(path: object) -> None:
    assert path_problem(path)


@pytest.mark.parametrize("path", ["/", "/a", "/a/b c", "/a/...", "/a/..b", "/a/\udc80", "/a\nb"])
def test_a_plain_path_has_none(path: str) -> None:
    assert path_problem(path) is None


def _matches(components: list[str], parts: list[str]) -> bool:
    """The definition, written down as slowly as possible."""
    if not components:
        return not parts
    if components[0] == "**":
        return _matches(components[1:], parts) or bool(parts and _matches(components, parts[1:]))
    if not parts:
        return False
    expression = re.escape(components[0]).replace(r"\*", ".*").replace(r"\?", ".")
    return bool(re.fullmatch(expression, parts[0])) and _matches(components[1:], parts[1:])


COMPONENTS = st.lists(
    st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "*a*b", "?", "**", "**"]), min_size=1, max_size=5
)
PARTS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "aabab", "c"]), min_size=1, max_size=6)


@examples(500)
@given(COMPONENTS, PARTS)
def test_a_glob_matches_what_its_definition_says(components: list[str], parts: list[str]) -> None:
    glob = compile_glob("/" + "/".join(components))
    assert glob.matches("/" + "/".join(parts)) == _matches(components, parts)


@examples(500)
@given(COMPONENTS, PARTS, st.integers(0, 6))
def test_a_search_from_above_a_matching_path_may_meet_it(components: list[str], parts: list[str], depth: int) -> None:
    glob = compile_glob("/" + "/".join(components))
    if glob.matches("/" + "/".join(parts)):
        assert may_meet(glob, tree_glob("/" + "/".join(parts[:depth])))


def test_a_search_beside_or_below_a_literal_glob_does_not_meet_it() -> None:
    assert not may_meet(compile_glob("/workspace/.env"), tree_glob("/workspace/src"))
    assert not may_meet(compile_glob("/workspace/*/.env"), tree_glob("/workspace/src/deep"))
    assert not may_meet(compile_glob("/workspace/secret/**"), tree_glob("/workspace/secrets"))
    assert may_meet(compile_glob("/workspace/*/.env"), tree_glob("/workspace/src"))


def test_no_glob_takes_long_on_a_hostile_path() -> None:
    globs = [compile_glob("/" + "*a" * 8 + "b"), compile_glob("/**/*a*a*a" * 8 + "/b"), compile_glob("/**" * 8 + "/b")]
    paths = ["/" + "a" * 4000, "/a" * 2000, "/" + "aaaa/" * 800 + "c"]
    started_s = time.process_time()
    assert not any(glob.matches(path) for glob in globs for path in paths)
    assert time.process_time() - started_s < 10, "backtracking would take years"


_GLOB_PARTS = st.sampled_from(["a", "ab", "a.b", "b", "**"])


@given(st.lists(_GLOB_PARTS, max_size=4), st.lists(st.sampled_from(["a", "ab", "a.b", "b", "abc"]), max_size=5))
def test_a_glob_that_needs_no_expression_matches_what_its_expression_does(parts: list[str], names: list[str]) -> None:
    glob, path = compile_glob("/" + "/".join(parts)), "/" + "/".join(names)
    assert glob.matches(path) == (glob.pattern.fullmatch(path) is not None)
