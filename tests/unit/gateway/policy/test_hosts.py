"""Patterns of hosts."""

from __future__ import annotations

import pytest

from gateway.policy.hosts import compile_host


@pytest.mark.parametrize(
    "pattern, host, port, matches",
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "a.pypi.org", 443, False),
        ("pypi.org:443", "pypi.org", 80, False),
        ("pypi.org:443", "pypi.org", 443, True),
        ("*.example.com", "a.b.example.com", 1, True),
        ("*.example.com", "example.com", 1, False),
        ("*.example.com", "evil-example.com", 1, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.0.0.0", 80, False),
        ("10.0.0.0/8:443", "10.1.2.3", 443, True),
        ("10.0.0.0/8:443", "10.1.2.3", 80, False),
        ("[fd00::/8]:443", "fd12::1", 443, True),
        ("[fd00::/8]:443", "fd12::1", 80, False),
        ("[fd00::/8]", "fe00::1", 80, False),
        ("[::/0]", "10.0.0.1", 80, False),
        ("0.0.0.0/0", "::1", 80, False),
        ("0.0.0.0/0", "pypi.org", 80, False),
        ("0.0.0.0/0", "a1", 80, False),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("[::1]", "::1", 80, True),
        ("*.0x7f.example", "1.0x7f.example", 80, True),
        ("a1", "10.0.0.1", 80, False),
    ],
)
def test_a_pattern_matches_hosts_of_its_kind(pattern: str, host: str, port: int, matches: bool) -> None:
    assert compile_host(pattern).matches(host, port) == matches


@pytest.mark.parametrize(
    "pattern, why",
    [
        ("*", "without hosts is about every host"),
        ("*:443", "without hosts is about every host"),
        ("a.*.com", "whole first label"),
        ("*a.com", "whole first label"),
        ("**.a.com", "whole first label"),
        ("*.*.com", "whole first label"),
        ("*.10.0.0.1", "an address has no subdomains"),
        ("*.10.0.0.0/8", "an address has no subdomains"),
        ("*.[::1]", "an address has no subdomains"),
        ("10.0.0.1/8", "judged as '10.0.0.0/8'"),
        ("[::ffff:10.0.0.0/104]", "judged as '10.0.0.0/8'"),
        ("[::ffff:10.0.0.1]", "judged as '10.0.0.1'"),
        ("10.0.0.0/33", "not a network"),
        ("fd00::/8", r"\[fd00::/8\]"),
        ("b\u00fccher.example", "judged as 'xn--bcher-kva.example'"),
        ("pypi.org.", "judged as 'pypi.org'"),
        ("https://pypi.org", "write pypi.org"),
        ("pypi.org/simple", "put the path of a URL in url_paths"),
        ("pypi.org:0", "is not a host"),
        ("pypi.org:65536", "is not a host"),
    ],
)
def test_a_pattern_that_is_none_says_what_to_write(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compile_host(pattern)


@pytest.mark.parametrize(
    "pattern", ["*.com", "*.localhost", "*.co.uk:443", "0.0.0.0/0", "10.0.0.0/7", "[::/0]", "[fc00::/6]"]
)
def test_hosts_of_more_than_one_owner_are_too_wide(pattern: str) -> None:
    assert "too wide" in str(compile_host(pattern).too_wide)


@pytest.mark.parametrize(
    "pattern", ["com", "*.example.com", "*.bbc.co.uk", "10.0.0.0/8", "[fc00::/7]", "10.0.0.1", "*.a.de"]
)
def test_others_are_not(pattern: str) -> None:
    assert compile_host(pattern).too_wide is None


@pytest.mark.parametrize(
    "wide, narrow",
    [
        ("10.0.0.0/8", "10.1.0.0/16"),
        ("10.0.0.0/8", "10.1.0.0:80"),
        ("10.0.0.0/8", "10.1.0.0/16:80"),
        ("10.0.0.0/8:80", "10.1.0.1:80"),
        ("[fd00::/8]", "[fd00::1]"),
        ("*.example.com", "*.a.example.com"),
        ("*.example.com", "a.example.com:1"),
    ],
)
def test_a_pattern_covers_narrower_ones_and_they_not_it(wide: str, narrow: str) -> None:
    assert compile_host(wide).covers(compile_host(narrow))
    assert not compile_host(narrow).covers(compile_host(wide))


def test_an_address_and_the_network_of_it_alone_are_the_same() -> None:
    one, other = compile_host("10.0.0.1"), compile_host("10.0.0.1/32")
    assert one.covers(other)
    assert other.covers(one)
    assert not compile_host("[::/0]").covers(one)
    assert not compile_host("0.0.0.0/0").covers(compile_host("example.com"))
