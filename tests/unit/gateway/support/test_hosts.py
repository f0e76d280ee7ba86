"""Hosts in their one spelling."""

from __future__ import annotations

import pytest

from gateway.support.hosts import canonical_host, host_of, peer_at


@pytest.mark.parametrize(
    "written, canonical",
    [
        ("PyPI.org.", "pypi.org"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("B\u00dcCHER.example", "xn--bcher-kva.example"),
        ("pypi\u3002org", "pypi.org"),
        ("py\u00adpi.org", "pypi.org"),
        ("\uff11\uff12\uff17.0.0.1", "127.0.0.1"),
        ("\u24dbocalhost", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_dns.example", "_dns.example"),
        ("0x7f.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("[::FFFF:7f00:1]", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("[2001:DB8:0::1]", "2001:db8::1"),
    ],
)
def test_a_host_has_one_spelling(written: str, canonical: str) -> None:
    assert canonical_host(written) == canonical
    assert canonical_host(canonical) == canonical


@pytest.mark.parametrize(
    "written, why",
    [
        ("user@pypi.org", "a user before the @"),
        ("user:password@pypi.org", "a user before the @"),
        ("pypi%2eorg", "percent-encoded"),
        ("%70ypi.org", "percent-encoded"),
        ("[fe80::1%25eth0]", "zone"),
        ("\uff05ab.\u00fc.org", "characters that no name has"),
        ("p pi.org", "neither"),
        ("pypi.org/simple", "neither"),
        ("pypi..org", "neither"),
        ("", "neither"),
        (".", "neither"),
        ("a\0.org", "neither"),
        ("1.2.3.4.5", "neither"),
        ("256.0.0.1", "neither"),
        ("[127.0.0.1]", "neither"),
        ("[::1]:443", "neither"),
        ("\u00fc" * 100_000, "longer than any name"),
    ],
)
def test_what_is_no_host_says_why(written: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        canonical_host(written)


@pytest.mark.parametrize(
    "peer, host",
    [
        ("ipv4:10.0.0.1:7", "ipv4:10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:7", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff]:9", "2001:db8::/64"),
        (peer_at("fe80::1%eth0", 7), "fe80::/64"),
        (peer_at("::ffff:10.0.0.1", 7), "ipv4:10.0.0.1"),
        ("unix:", "unix:"),
    ],
)
def test_the_host_of_a_peer_is_an_address_or_a_network_of_ipv6(peer: str, host: str) -> None:
    assert host_of(peer) == host
