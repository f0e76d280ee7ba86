"""`python3 -m sandbox.tls --listen HOST:PORT --socket PATH --identity FILE --authority FILE --gateway NAME`: the relay.

It runs where tool code is not: in a container of its own, which shares a directory with the daemon, for the socket, and
nothing else. The files are PEM: its key and certificate, and the certificate of the authority. NAME is the gateway's
(identity.py). With `--pooled ID` the gateway may replace the identity once, by one of sandbox ID. `--serve-own-network`
also accepts connections from the relay's own addresses, which elsewhere are tool code's.

It says on stdout where it listens, and ends on SIGTERM. Exit status 78 means that it cannot start, and stderr says why.
"""

# ruff: noqa: T201 - a program that says where it listens

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import sys
from pathlib import Path

from sandbox.tls.own_addresses import drop_own
from sandbox.tls.server import Relay

_BACKLOG = 512


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM; return the exit status."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))  # as pid 1 it would ignore it
    given = _parsed(arguments)
    try:
        identity, authority = Path(given.identity).read_bytes(), Path(given.authority).read_text(encoding="ascii")
        relay = Relay(given.socket, identity, authority, given.gateway, pooled=given.pooled)
        listener = _listening(given.listen, drop=not given.serve_own_network)
    except (OSError, ValueError) as error:
        what = (
            f"{given.identity} or {given.authority} is not what it must be: " if isinstance(error, ssl.SSLError) else ""
        )
        print(f"airlock channel: cannot start: {what}{error}", file=sys.stderr)
        return 78
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection takes three
    host, port = listener.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(relay.accept_from(listener, refuse_own=not given.serve_own_network))
    return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sandbox.tls", allow_abbrev=False)
    for name in ("listen", "socket", "identity", "authority", "gateway"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--pooled", default="")
    parser.add_argument("--serve-own-network", action="store_true")
    return parser.parse_args(arguments)


def _listening(address: str, *, drop: bool) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"--listen must be HOST:PORT, not {address!r}")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if drop:
            drop_own(listener)
        listener.bind((host, int(port)))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
