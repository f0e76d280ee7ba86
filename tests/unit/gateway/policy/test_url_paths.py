"""Paths of URLs, settled before a rule is about them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.url_paths import compile_url_glob, judged_path
from tests.examples import examples


@pytest.mark.parametrize(
    "target, judged",
    [
        ("/", "/"),
        ("/simple/pip/", "/simple/pip"),
        ("/a?next=/../b", "/a"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/.%2e/b", "/b"),
        ("/../../a", "/a"),
        ("/a/b/..", "/a"),
        ("/a/.", "/a"),
        ("/%7Euser/%41", "/~user/A"),
        ("/%40scope/x%2a", "/@scope/x*"),
        ("/a%20b/%C3%a9", "/a b/\u00e9"),
        ("/100%25", "/100%"),
        ("/.../..a", "/.../..a"),
    ],
)
def test_all_spellings_of_a_path_become_one(target: str, judged: str) -> None:
    assert judged_path(target) == judged


@pytest.mark.parametrize(
    "target",
    [
        "",
        "*",
        "a",
        "http://a/b",
        "/a%2fb",
        "/a/..%2Fb",
        "/a%5cb",
        "/a\\b",
        "/a/..;/b",
        "/a;x=1/b",
        "/a%3Bx",
        "/a%3Fb",
        "/a%23b",
        "/a%00",
        "/a%0d%0a",
        "/%252e%252e/b",
        "/a%252Fb",
        "/%2525",
        "/a%",
        "/a%zz",
        "//a",
        "/a//b",
        "/a/..//b",
        "/a b",
        "/\u00e9",
        "/%FF",
        "/%C0%AF",
        "/a#b",
        "/a\n",
        "/" + "a" * 5000,
    ],
)
def test_a_path_that_servers_read_in_different_ways_is_not_judged(target: str) -> None:
    assert judged_path(target) is None


@examples(500)
@given(
    st.lists(st.sampled_from(["/", ".", "%2e", "%2E", "a", "%41", "%40", "@", "%C3%A9", "%25", "2", "f"]), max_size=8)
)
def test_what_is_judged_stays_as_it_is_and_has_no_dot_segments(pieces: list[str]) -> None:
    path = judged_path("/" + "".join(pieces))
    if path is not None:
        assert judged_path(quote(path)) == path
        assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "glob, why",
    [
        ("simple/**", "not absolute"),
        ("/search?q=*", "do not see the query"),
        ("/a%20b", "is compared decoded; write ' ' for %20"),
        ("/a;b", "a semicolon"),
        ("/a#b", "a number sign"),
        ("/simple/", "makes no difference"),
        ("/a//b", "empty"),
        ("/a/../b", "no judged path"),
    ],
)
def test_a_glob_that_could_match_no_path_says_what_to_write(glob: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compile_url_glob(glob)


@pytest.mark.parametrize(
    "target, matches", [("/simple", True), ("/simple/", True), ("/simple/a/", True), ("/simplex", False)]
)
def test_a_slash_at_the_end_makes_no_difference(target: str, matches: bool) -> None:
    assert compile_url_glob("/simple/**").matches(str(judged_path(target))) == matches
