"""Hosts in their one spelling, addresses by what they are, and peers as grpc names them.

One host has many spellings: PyPI.org, pypi.org. with a dot, 127.1, 0x7f000001, ::ffff:127.0.0.1. Rules, credentials
and connections are all about its one canonical spelling, so that they mean the same host.
"""

import ipaddress
import re
import socket
from functools import lru_cache

_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_LIMIT_CHARS = 300
# Addresses that are not of the public internet, by what they are, after IANA's registries of special-purpose addresses
# (RFC 6890): what Python's `ipaddress` calls global has changed between its releases. Metadata of clouds is at
# 169.254.169.254 and 169.254.170.2, fd00:ec2::254 and fd20:ce::254; 168.63.129.16 is Azure's; Teredo is 2001::/32.
_SPECIAL: dict[str, str] = {
    "an unspecified address": "0.0.0.0/8 ::/128",
    "a private address": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    "a shared address of a provider": "100.64.0.0/10",
    "a loopback address": "127.0.0.0/8 ::1/128",
    "an address of a cloud's own services": "168.63.129.16/32",
    "a link-local address": "169.254.0.0/16 fe80::/10",
    "an address of a tunnel": "192.88.99.0/24 2002::/16",
    "an address that stands for one of IPv4": "64:ff9b::/96 64:ff9b:1::/48",
    "a multicast address": "224.0.0.0/4 ff00::/8",
    "a reserved address": "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 2001::/23"
    " 2001:db8::/32 3fff::/20",
}
_NETWORKS = [(ipaddress.ip_network(text), what) for what, texts in _SPECIAL.items() for text in texts.split()]
_GLOBAL = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that has been given out for the public internet; there are reserved addresses in it, too."""
_OTHER = "a reserved address"
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# Whose translators choose among the lengths of RFC 6052 (section 2.2): where an IPv4 address may begin. It leaves out
# bits 64 to 71, which are zero.
_TRANSLATED_LOCALLY = ipaddress.IPv6Network("64:ff9b:1::/48")
_LOCAL_PREFIXES = (48, 56, 64, 96)
_NO_DESTINATION = ipaddress.IPv4Network("0.0.0.0/8")
# A client with one IPv6 address usually has its whole network.
_CLIENT_PREFIX = 64

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def canonical_host(text: str) -> str:
    """Return the one spelling of a host: small letters, no dot at the end, addresses in their usual form.

    Names in other scripts become xn--.... Raises ValueError for what is no host: other characters, user@host.
    """
    if len(text) > _LIMIT_CHARS:
        raise ValueError("it is longer than any name")
    if "@" in text:
        raise ValueError("it has a user before the @; a host stands alone")
    if "%" in text and ":" not in text:
        raise ValueError("it is percent-encoded; write its characters themselves")
    name = (text if text.isascii() else _in_ascii(text)).lower()
    if name.startswith("[") and name.endswith("]"):
        return _address(name[1:-1])
    if ":" in name:
        return _address(name)
    name = name.removesuffix(".")
    last = name.rpartition(".")[2]
    if _NUMBER.fullmatch(last):
        return _ipv4(name)
    if not _NAME.fullmatch(name):
        raise ValueError("it is neither a name nor an address")
    return name


@lru_cache(maxsize=4096)
def address_of(host: str) -> Address | None:
    """Return the address that a canonical host is, None for a name."""
    if ":" not in host and not host[-1:].isdigit():
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_within(inner: Network, outer: Network) -> bool:
    """Return whether all addresses of a network are in another one."""
    return inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def shown_endpoint(host: str, port: int | None) -> str:
    """Return HOST:PORT of a canonical host, with an IPv6 address in brackets."""
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def peer_at(host: str, port: int) -> str:
    """Return an address as grpc names peers."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def host_of(peer: str) -> str:
    """Return the address of a peer, as grpc names it, without its port; for IPv6 its network."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0]
    if kind != "ipv6":
        return f"{kind}:{host}"
    try:
        address = ipaddress.IPv6Address(host.replace("%5B", "").replace("%5D", "").strip("[]").partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return f"ipv4:{address.ipv4_mapped}"
    return str(ipaddress.IPv6Network((address, _CLIENT_PREFIX), strict=False))


def _in_ascii(text: str) -> str:
    import idna  # noqa: PLC0415 - its tables are large, and names in other scripts are rare

    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except UnicodeError as error:
        raise ValueError("it has characters that no name has; a name in another script is written xn--...") from error


def _address(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError as error:
        raise ValueError("it is neither a name nor an address") from error
    if address.scope_id is not None:
        raise ValueError("an address with a zone (%) is not judged")
    return str(address.ipv4_mapped or address)


def _ipv4(text: str) -> str:
    """Read an IPv4 address as programs do: one to four numbers, decimal, octal or hexadecimal."""
    try:
        if not all(_NUMBER.fullmatch(part) for part in text.split(".")):
            raise ValueError(text)
        return str(ipaddress.IPv4Address(socket.inet_aton(text)))
    except (OSError, ValueError) as error:
        raise ValueError("it is neither a name nor an address") from error


@lru_cache(maxsize=4096)
def special(address: Address | Network) -> str | None:
    """Return what is special about an address, or all of a network, for people; None for public ones."""
    network = address if isinstance(address, Network) else ipaddress.ip_network(address)
    found = next((what for outer, what in _NETWORKS if is_within(network, outer)), None)
    if found is None and network.version == 6 and not network.overlaps(_GLOBAL):
        return _OTHER
    return found


def carried(address: Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the addresses of IPv4 to which a translator (NAT64), a tunnel (6to4, Teredo) or a mapping may lead."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _TRANSLATED:
        found.append(_embedded(address, 96))
    if address in _TRANSLATED_LOCALLY:
        possible = [_embedded(address, length) for length in _LOCAL_PREFIXES]
        # What is zero beside the address reads as one to which no packet is sent.
        found += [one for one in possible if one not in _NO_DESTINATION] or possible
    if int(address) >> 32 == 0:  # ::a.b.c.d, long out of use
        found.append(ipaddress.IPv4Address(int(address)))
    return tuple(one for one in found if one is not None)


def _embedded(address: ipaddress.IPv6Address, length: int) -> ipaddress.IPv4Address:
    """Return the address of IPv4 behind a prefix (RFC 6052, section 2.2)."""
    octets = address.packed
    if length < 96:
        octets = octets[:8] + octets[9:]
    return ipaddress.IPv4Address(octets[length // 8 : length // 8 + 4])
