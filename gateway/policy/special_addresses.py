"""Addresses that are not of the public internet: what a connection reaches only where the operator names it.

After the registries of special-purpose addresses of IANA (RFC 6890), written out here: what Python's `ipaddress` calls
global has changed between its releases.
"""

import ipaddress
from functools import lru_cache

from gateway.policy.hosts import Address, Network, is_within

_SPECIAL: dict[str, str] = {
    "0.0.0.0/8": "an unspecified address",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "a shared address of a provider",
    "127.0.0.0/8": "a loopback address",
    "168.63.129.16/32": "an address of a cloud's own services",  # Azure's, in the public range
    "169.254.0.0/16": "a link-local address",  # 169.254.169.254 and 169.254.170.2: metadata
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "a reserved address",
    "192.0.2.0/24": "a reserved address",
    "192.88.99.0/24": "an address of a tunnel",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "a reserved address",
    "198.51.100.0/24": "a reserved address",
    "203.0.113.0/24": "a reserved address",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
    "::/128": "an unspecified address",
    "::1/128": "a loopback address",
    "64:ff9b::/96": "an address that stands for one of IPv4",
    "64:ff9b:1::/48": "an address that stands for one of IPv4",
    "2001::/23": "a reserved address",  # Teredo is 2001::/32
    "2001:db8::/32": "a reserved address",
    "2002::/16": "an address of a tunnel",
    "3fff::/20": "a reserved address",
    "fc00::/7": "a private address",  # fd00:ec2::254, fd20:ce::254: metadata
    "fe80::/10": "a link-local address",
    "fec0::/10": "a private address",
    "ff00::/8": "a multicast address",
}
_SPECIAL_NETWORKS = [(ipaddress.ip_network(text), what) for text, what in _SPECIAL.items()]
_GLOBAL = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that has been given out for the public internet; there are reserved addresses in it, too."""
_OTHER = "a reserved address"
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


@lru_cache(maxsize=4096)
def special(address: Address | Network) -> str | None:
    """Return what is special about an address, or all of a network, for people; None for public ones."""
    network = address if isinstance(address, Network) else ipaddress.ip_network(address)
    found = next((what for outer, what in _SPECIAL_NETWORKS if is_within(network, outer)), None)
    if found is None and network.version == 6 and not network.overlaps(_GLOBAL):
        return _OTHER
    return found


def carried(address: Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the addresses of IPv4 to which a translator (NAT64), a tunnel (6to4, Teredo) or a mapping may lead."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _TRANSLATED):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if int(address) >> 32 == 0:  # ::a.b.c.d, long out of use
        found.append(ipaddress.IPv4Address(int(address)))
    return tuple(one for one in found if one is not None)
