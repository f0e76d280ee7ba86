"""Addresses that are not of the public internet: what a connection reaches only where the operator names it.

After the registries of special-purpose addresses of IANA (RFC 6890), written out here: what Python's `ipaddress` calls
global has changed between its releases.
"""

import ipaddress
from functools import lru_cache

from gateway.policy.hosts import Address, Network, is_within

# By what they are. Metadata of clouds is at 169.254.169.254 and 169.254.170.2, fd00:ec2::254 and fd20:ce::254;
# 168.63.129.16 is Azure's, in the public range; Teredo is 2001::/32.
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
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


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
    if any(address in network for network in _TRANSLATED):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if int(address) >> 32 == 0:  # ::a.b.c.d, long out of use
        found.append(ipaddress.IPv4Address(int(address)))
    return tuple(one for one in found if one is not None)
