"""Hosts: patterns (`pypi.org`, `pypi.org:443`, `*.example.com` for every name below it), and names made canonical.

One host has many spellings: PyPI.org, pypi.org. with a dot, 127.1, 0x7f000001, ::ffff:127.0.0.1. A host is judged by
its one canonical spelling, so that no other spelling of it passes by a rule.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from functools import lru_cache

from gateway.policy.certainty import NO, PERHAPS, YES, Certainty

_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_PATTERN = re.compile(r"(\*\.)?(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_LIMIT_PORT = 65_535
_FORM = "write pypi.org, pypi.org:443 or *.example.com, in small letters"


@dataclass(frozen=True)
class HostPattern:
    """A compiled pattern; `port` is None for every port."""

    name: str
    below: bool
    port: int | None

    def names(self, host: str) -> bool:
        """Return whether it is about a canonical host, whatever the port."""
        return host.endswith("." + self.name) if self.below else host == self.name

    def matches(self, host: str, port: int | None) -> Certainty:
        """Return whether it matches; a port that is not known could be any."""
        if not self.names(host):
            return NO
        return YES if self.port in (None, port) else PERHAPS if port is None else NO


@lru_cache(maxsize=4096)
def compile_host(text: str) -> HostPattern:
    """Compile a host pattern. Raises ValueError that says what is wrong and what is allowed."""
    found = _PATTERN.fullmatch(text)
    if found is None or (found[3] is not None and not 0 < int(found[3]) <= _LIMIT_PORT):
        raise ValueError(f"{text!r} is not a host; {_FORM}")
    try:
        name = canonical_host(found[2])
    except ValueError as error:
        raise ValueError(f"{text!r} is not a host: {error}; {_FORM}") from error
    written = found[2].strip("[]")
    if name != written:
        raise ValueError(f"{text!r} is judged as {name!r}; write that")
    if found[1] and (":" in name or _NUMBER.fullmatch(name.rpartition(".")[2])):
        raise ValueError(f"{text!r}: nothing is below an address; {_FORM}")
    return HostPattern(name, found[1] is not None, int(found[3]) if found[3] else None)


def canonical_host(text: str) -> str:
    """Return the one spelling of a host: small letters, no dot at the end, addresses in their usual form.

    Raises ValueError for what is no host: other characters (names in other scripts are written xn--...), user@host.
    """
    if not text.isascii():
        raise ValueError("it has characters that are not ASCII; names in other scripts are written as xn--...")
    name = text.lower()
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
