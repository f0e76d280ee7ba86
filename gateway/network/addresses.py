"""From a host to the addresses that may be dialled: resolved here, by the gateway, and checked before they are used.

A name that tool code may connect to is not under the operator's control, and may lead to the gateway's own network,
to a cloud's metadata, or to the gateway itself. So only public addresses are dialled, and others where the operator
names that very address. The caller dials exactly one of the addresses that it gets, for a second look-up could answer
otherwise.
"""

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from gateway.network.lookups import Lookups
from gateway.support.hosts import Address, carried, shown_endpoint, special

_LIMIT_ADDRESSES = 32
"""Of one name; more would only be tried one after the other."""
_ANY_PORT = 9
# For documentation (RFC 5737, RFC 3849): no machine has them.
_NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}

Lookup = Callable[[str, int], Awaitable[Iterable[str]]]
"""Returns the addresses of a name, in the order in which they are to be tried. Raises OSError or UnicodeError."""
Permits = Callable[[str, int], bool]
"""Returns whether the operator names an address, with a port."""
Denies = Callable[[str, int], str]
"""Returns the rule that denies what leads to an address, with a port; "" for none."""
LOOKUPS = Lookups()
"""Those of this process."""


class Unreachable(Exception):
    """A host without an address that may be dialled; str() says why.

    `rule` is the one that denies its first address, where the kind is denied_address.
    """

    def __init__(
        self, kind: Literal["unresolved", "timeout", "private_address", "denied_address"], message: str, rule: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rule = rule


async def resolve(
    host: str, port: int, *, permits: Permits, denies: Denies, timeout_s: float, lookup: Lookup = LOOKUPS
) -> Sequence[str]:
    """Return the addresses of a canonical host that may be dialled, in order, at least one. Raises Unreachable.

    An address is refused unless it is public and of another machine (no firewall would be on the way to this one), or
    `permits` says that the operator names it. One that carries an address of IPv4 (NAT64, 6to4, Teredo) is never
    public; where it is named, what it carries has to pass as well. An IPv4-mapped one is its IPv4 address. What
    `denies` names is always refused. A host that is written as an address was already judged as one, so there `denies`
    gets only the addresses that it carries.
    """
    shown = shown_endpoint(host, port)
    found = [address] if (address := _address(host)) is not None else await _looked_up(host, port, timeout_s, lookup)
    if not found:
        raise Unreachable("unresolved", f"{host} has no address")
    denied = {str(one): _denied(one, port, denies, literal=address is not None) for one in found}
    allowed = [str(one) for one in found if not denied[str(one)] and _may_be_dialled(one, port, permits)]
    if allowed:
        return allowed
    first = found[0]
    if rule := denied[str(first)]:
        raise Unreachable("denied_address", f"{host} leads to {first}, which a rule denies", rule)
    what = special(first) or "an address of the gateway's own machine"
    said = f"{shown} is {what}" if address is not None else f"{host} leads to {what}, {first}"
    raise Unreachable("private_address", f"{said}, which no rule of the operator names")


async def _looked_up(host: str, port: int, timeout_s: float, lookup: Lookup) -> list[Address]:
    try:
        async with asyncio.timeout(timeout_s):
            answers = await lookup(host, port)
    except TimeoutError as error:
        raise Unreachable("timeout", f"{host} was not resolved within {timeout_s:g} s") from error
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise Unreachable("unresolved", f"{host} does not resolve: {said or 'it is not a name'}") from error
    addresses = [address for answer in answers if (address := _address(answer)) is not None]
    return list(dict.fromkeys(addresses))[:_LIMIT_ADDRESSES]


def _address(text: str) -> Address | None:
    """Return the address that a text is, of an IPv4-mapped one its IPv4; None for a name, and one with a zone (%)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return None if address.scope_id is not None else address.ipv4_mapped or address


def may_be_dialled(host: str, address: str, port: int, permits: Permits, denies: Denies) -> bool:
    """Return whether an address that a host led to may be dialled; False for a text that is none."""
    found = _address(address)
    if found is None or _denied(found, port, denies, literal=_address(host) is not None):
        return False
    return _may_be_dialled(found, port, permits)


def _may_be_dialled(address: Address, port: int, permits: Permits) -> bool:
    if _is_public(address):
        return True
    return permits(str(address), port) and all(_is_public(one) or permits(str(one), port) for one in carried(address))


def _is_public(address: Address) -> bool:
    return special(address) is None and not _is_own(address)


def _is_own(address: Address) -> bool:
    """Return whether it is an address of this machine. Sends nothing."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if _binds_any(family):  # the way from it to itself: a secondary address leads from the first
                probe.connect((str(address), _ANY_PORT))
                return bool(probe.getsockname()[0] == str(address))
            probe.bind((str(address), 0))
            return True
    except OSError:
        return False


@functools.cache
def _binds_any(family: socket.AddressFamily) -> bool:
    """Return whether sockets may have addresses of other machines (ip_nonlocal_bind)."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.bind((_NOWHERE[family], 0))
        return True
    return False


def _denied(address: Address, port: int, denies: Denies, *, literal: bool) -> str:
    every = carried(address) if literal else (address, *carried(address))
    return next((rule for one in every if (rule := denies(str(one), port))), "")
