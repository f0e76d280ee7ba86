"""Limits calls without a known caller by connection, by address and in all.

They never take the places reserved for known callers (gateway/serving/open_rpcs.py).
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator

from gateway.errors import Overloaded

_RETRY_S = 1.0
# Whoever has one IPv6 address usually has its whole network.
_IPV6_PREFIX = 64


def host_of(peer: str) -> str:
    """Return the address of a peer, as grpc names it, without its port; for IPv6 its network."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0]
    if kind != "ipv6":
        return f"{kind}:{host}"
    address = host.replace("%5B", "").replace("%5D", "").strip("[]").partition("%")[0]
    try:
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    except ValueError:
        return peer


class AnonymousConnections:
    """Limits calls of one kind."""

    def __init__(self, *, of_connection: int, of_host: int, in_all: int) -> None:
        self._limits = of_connection, of_host, in_all
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, peer: str) -> Iterator[None]:
        """Count a call of a peer until the block ends; raises Overloaded."""
        end = self.begin(peer)
        try:
            yield
        finally:
            end()

    def begin(self, peer: str) -> Callable[[], None]:
        """Count a call of a peer until the returned function is called, once or more often; raises Overloaded."""
        names = f"connection {peer}", f"host {host_of(peer)}", "all"
        for name, limit in zip(names, self._limits, strict=True):
            if name in self._open and self._open[name] >= limit:
                kind = name.partition(" ")[0]
                where = {"connection": "on this connection", "host": "from this address", "all": "on this gateway"}
                raise Overloaded(
                    f"{limit} calls without an authenticated caller are open {where[kind]}: try again", _RETRY_S
                )
        for name in names:
            self._open[name] += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            for name in names:
                self._open[name] -= 1
                if not self._open[name]:
                    del self._open[name]

        return end
