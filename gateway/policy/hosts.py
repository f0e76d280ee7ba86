"""Patterns of hosts.

A pattern is a name (`pypi.org`), every name below one (`*.example.com`), an address, or a network (`10.0.0.0/8`), each
with a port or for all of them (`pypi.org:443`).

A host is judged by its one canonical spelling (gateway/support/hosts.py), so that no other spelling of it passes by a
rule. Patterns of names match no address, and patterns of addresses no name: what a name resolves to is not known when
it is judged. Deny rules are applied again to the addresses that it resolves to.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from gateway.support.hosts import Network, address_of, canonical_host, is_within

_PATTERN = re.compile(r"(\*\.)?(\[[0-9a-f:.]+(?:/[0-9]{1,3})?\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_LIMIT_PORT = 65_535
_MAPPED_BITS = 96  # of ::ffff:0:0/96, which holds all of IPv4
_FORM = "write pypi.org, pypi.org:443, *.example.com, 10.0.0.0/8 or [fd00::/8]:443, in small letters"
# Below these names, as below .com, anybody registers names: *.co.uk.
_REGISTRY = re.compile(r"(?:ac|co|com|edu|gob|gouv|gov|mil|ne|net|nom|or|org)\.[a-z]{2}")
# The widest networks with one owner: 10.0.0.0/8, and fc00::/7, all private addresses of IPv6.
_WIDEST = {4: 8, 6: 7}


@dataclass(frozen=True)
class HostPattern:
    """A compiled pattern: a name, all names `below` a name, or `addresses`; `port` is None for all."""

    name: str
    below: bool
    port: int | None
    addresses: Network | None = None

    def names(self, host: str) -> bool:
        """Return whether it is about a canonical host, whatever the port."""
        if self.addresses is not None:
            address = address_of(host)
            return address is not None and address in self.addresses
        return host.endswith("." + self.name) if self.below else host == self.name

    def matches(self, host: str, port: int) -> bool:
        """Return whether it matches."""
        return self.port in (None, port) and self.names(host)

    def covers(self, other: "HostPattern") -> bool:
        """Return whether it matches whatever another pattern matches."""
        if self.port not in (None, other.port):
            return False
        own, others = self.addresses, other.addresses
        if own is not None or others is not None:
            return own is not None and others is not None and is_within(others, own)
        if self.below:
            return self.names(other.name) or (other.below and self.name == other.name)
        return self.name == other.name and not other.below

    def shares_addresses(self, other: "HostPattern") -> bool:
        """Return whether some address matches both, with some port."""
        own, others, ports = self.addresses, other.addresses, (self.port, other.port)
        return own is not None and others is not None and own.overlaps(others) and (None in ports or len({*ports}) == 1)

    @property
    def too_wide(self) -> str | None:
        """What keeps it from being allowed, where it holds hosts of more than one owner."""
        if self.below and ("." not in self.name or _REGISTRY.fullmatch(self.name)):
            return f"*.{self.name} is too wide: anybody may have a name below {self.name}; name the domain as well"
        if self.addresses is not None and self.addresses.prefixlen < (widest := _WIDEST[self.addresses.version]):
            return f"{self.name} is too wide: a network that is allowed has /{widest} or more; write smaller ones"
        return None


@lru_cache(maxsize=4096)
def compile_host(text: str) -> HostPattern:
    """Compile a host pattern. Raises ValueError that says what is wrong and what is allowed."""
    found = _PATTERN.fullmatch(text)
    if found is None or (found[3] is not None and not 0 < int(found[3]) <= _LIMIT_PORT):
        raise ValueError(f"{text!r} is not a host; {_FORM}")
    written, port = found[2].strip("[]"), int(found[3]) if found[3] else None
    if written == "*":
        raise ValueError(f"{text!r}: a rule without hosts is about every host; for one port add `when: port == 443`")
    if "*" in written:
        raise ValueError(f"{text!r}: * may only be the whole first label, as in *.example.com")
    try:
        addresses = _network(written) if "/" in written else None
        name = str(addresses) if addresses is not None else canonical_host(found[2])
    except ValueError as error:
        raise ValueError(f"{text!r} is not a host: {error}; {_FORM}") from error
    if name != written:
        raise ValueError(f"{text!r} is judged as {name!r}; write that")
    if (address := address_of(name)) is not None:
        addresses = ipaddress.ip_network(address)
    if found[1] and addresses is not None:
        raise ValueError(f"{text!r}: an address has no subdomains; {_FORM}")
    return HostPattern(name, found[1] is not None, port, addresses)


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError("it is not a network; put the path of a URL in url_paths") from error
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS))
