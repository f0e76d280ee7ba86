"""Where a gateway listens: the address, the options of its server, and addresses that several workers share."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

from gateway.config.config import Config
from gateway.errors import Misconfigured
from gateway.identity.tls import server_credentials
from gateway.serving.taking_server import TakingServer

CONCURRENT_RPCS = 3072
"""More than callers who are known and callers who are not may have open together."""
# What agents and services ask for again and again.
_OFTEN = (
    "/gateway.v1.ToolService/CallTool",
    "/gateway.v1.ToolService/StreamToolCall",
    "/gateway.v1.ProcessService/RunProgram",
    "/gateway.v1.WorkspaceService/ReadFile",
    "/gateway.v1.WorkspaceService/WriteFile",
    "/gateway.v1.RunService/StartRun",
    "/gateway.v1.RunService/WatchRun",
    "/gateway.v1.RunService/GetRun",
)
# More wait at the client. Of those that come faster than a server takes them, grpc's core ends some past a thousand;
# and there must be room for all that a tenant may have open, lest its calls wait for its watchers.
_STREAMS_OF_A_CONNECTION = 1000
# What is parsed at once on the one event loop that all tenants share; larger files go through WorkspaceService.
_REQUEST_LIMIT_BYTES = 4 * 1024 * 1024
# A policy may let large results through.
_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
_LAST_PORT = 65_535
# A peer that is gone without a word is found so soon, also where it has no call just then.
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 30_000, 10_000
# Grpc's own is five minutes: the third ping of a client that waits for an answer would end its connection.
_LEAST_BETWEEN_PINGS_MS = 10_000


def server_options(*, shared: bool) -> tuple[tuple[str, int], ...]:
    """Return the options of a server; on a shared port the kernel gives each worker its part of the connections."""
    return (
        ("grpc.max_receive_message_length", _REQUEST_LIMIT_BYTES),
        ("grpc.max_send_message_length", _ANSWER_LIMIT_BYTES),
        ("grpc.so_reuseport", int(shared)),
        # Else a stream's window grows to megabytes on a fast connection, and the core holds as much of each that is not
        # read. For a message that is being read it grows to the size of the message all the same.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", _STREAMS_OF_A_CONNECTION),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_BETWEEN_PINGS_MS),
    )


def make_server(*interceptors: Any, shared: bool) -> TakingServer:
    """Return a server that serves nothing yet."""
    return TakingServer(_OFTEN, interceptors, server_options(shared=shared), CONCURRENT_RPCS)


def bind(server: TakingServer, listen: str, config: Config) -> str:
    """Have a server listen and return its HOST:PORT; Misconfigured when it cannot."""
    host, _ = host_and_port(listen)
    credentials = server_credentials(config.tls, config.path) if config.tls is not None else None
    try:
        bound = server.add_port(listen, credentials)
    except RuntimeError as error:
        raise _not_to_be_had(listen) from error
    return f"{host}:{bound}"


def host_and_port(listen: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT; Misconfigured for anything else."""
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT:
        raise Misconfigured(f"--listen {listen!r}: must be HOST:PORT, such as 127.0.0.1:7443")
    return host, int(port)


def is_loopback(listen: str) -> bool:
    """Return whether only this machine reaches an address; a name that is not localhost may be anybody's."""
    host = host_and_port(listen)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_taken(listen: str) -> None:
    """Raise Misconfigured for an address that another program has: grpc would say so late, and in words of its own."""
    host, port = host_and_port(listen)
    try:
        family, kind, protocol, _, address = _found(host, port)
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _not_to_be_had(listen) from error
        # Anything else is grpc's to judge, which tries more than this one address.


@contextlib.contextmanager
def reserved(listen: str) -> Iterator[str]:
    """Keep an address for workers, a free port for port 0, until the block ends; nobody listens here.

    A program that does not share its port refuses the bind, as it would refuse theirs.
    """
    host, port = host_and_port(listen)
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = _found(host, port)
            with socket.socket(family, kind, protocol) as alone:
                # Another gateway of this user that shares the same port would be no obstacle to sharing it, and each
                # connection would then be either's.
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
            held = stack.enter_context(socket.socket(family, kind, protocol))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
        except OSError as error:
            raise _not_to_be_had(listen) from error
        yield f"{host}:{held.getsockname()[1]}"


def _found(host: str, port: int) -> tuple[Any, ...]:
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return found[0]


def _not_to_be_had(listen: str) -> Misconfigured:
    return Misconfigured(f"--listen {listen}: the port is in use, or the address does not belong to this machine")
