"""Paths of URLs, settled before a rule is about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.url_paths import compile_url_glob, judged_path, settled_path
from tests.examples import examples


@pytest.mark.parametrize(
    "target, sent, judged",
    [
        ("/", "/", "/"),
        ("/simple/pip/", "/simple/pip/", "/simple/pip"),
        ("/a?next=/../b", "/a", "/a"),
        ("/a/./b", "/a/b", "/a/b"),
        ("/a/../b", "/b", "/b"),
        ("/a/%2e%2E/b", "/b", "/b"),
        ("/a/.%2e/b", "/b", "/b"),
        ("/../../a", "/a", "/a"),
        ("/a/b/..", "/a/", "/a"),
        ("/a/.", "/a/", "/a"),
        ("/%7Euser/%41", "/~user/A", "/~user/A"),
        ("/%40scope/x%2a", "/%40scope/x%2A", "/@scope/x*"),
        ("/a%20b/%C3%a9", "/a%20b/%C3%A9", "/a b/\u00e9"),
        ("/100%25", "/100%25", "/100%"),
        ("/.../..a", "/.../..a", "/.../..a"),
    ],
)
def test_all_spellings_of_a_path_become_one(target: str, sent: str, judged: str) -> None:
    assert settled_path(target) == sent
    assert judged_path(target) == judged


@pytest.mark.parametrize(
    "target, why",
    [
        ("", "starts with /"),
        ("*", "starts with /"),
        ("a", "starts with /"),
        ("http://a/b", "starts with /"),
        ("/a%2fb", "a slash, encoded"),
        ("/a/..%2Fb", "a slash, encoded"),
        ("/a%5cb", "a backslash, encoded"),
        ("/a\\b", "have to be encoded"),
        ("/a/..;/b", "a semicolon"),
        ("/a;x=1/b", "a semicolon"),
        ("/a%3Bx", "a semicolon, encoded"),
        ("/a%3Fb", "a question mark, encoded"),
        ("/a%23b", "a number sign, encoded"),
        ("/a%00", "a control character"),
        ("/a%0d%0a", "a control character"),
        ("/%252e%252e/b", "encoded twice"),
        ("/a%252Fb", "encoded twice"),
        ("/%2525", "encoded twice"),
        ("/a%", "% without two digits"),
        ("/a%zz", "% without two digits"),
        ("//a", "two slashes"),
        ("/a//b", "two slashes"),
        ("/a/..//b", "two slashes"),
        ("/a b", "have to be encoded"),
        ("/\u00e9", "have to be encoded"),
        ("/%FF", "not UTF-8"),
        ("/%C0%AF", "not UTF-8"),
        ("/a#b", "have to be encoded"),
        ("/a\n", "have to be encoded"),
        ("/" + "a" * 5000, "longer than"),
    ],
)
def test_a_path_that_servers_read_in_different_ways_is_not_settled(target: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settled_path(target)
    assert judged_path(target) is None


@examples(500)
@given(
    st.lists(st.sampled_from(["/", ".", "%2e", "%2E", "a", "%41", "%40", "@", "%C3%A9", "%25", "2", "f"]), max_size=8)
)
def test_what_is_settled_stays_as_it_is_and_has_no_dot_segments(pieces: list[str]) -> None:
    path = judged_path("/" + "".join(pieces))
    if path is not None:
        settled = settled_path("/" + "".join(pieces))
        assert settled_path(settled) == settled
        assert judged_path(settled) == path
        assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "glob, why",
    [
        ("simple/**", "not absolute"),
        ("/search?q=*", "sees no query"),
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
