"""The address where a gateway listens, the options of its server, a port shared by several workers; and startup checks.

Those refuse configurations that are open to more callers than the operator intends.
"""

import contextlib
import errno
import ipaddress
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.config.config import Config
from gateway.credentials.keys import digest_of
from gateway.errors import Misconfigured
from gateway.identity.tls import server_credentials
from gateway.serving.prefetching_server import PrefetchingServer
from gateway.storage.connecting import file_of
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore

CONCURRENT_RPCS = 3072
"""More than known and unknown callers may have open together."""
# The methods that agents and services call most.
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
# More calls wait at the client. If calls arrive faster than the server accepts them, grpc's core ends some past a
# thousand; and a tenant's calls must not wait for its watchers.
_STREAMS_OF_A_CONNECTION = 1000
# The event loop that all tenants share parses a request at once; WorkspaceService streams larger files.
_REQUEST_LIMIT_BYTES = 4 * 1024 * 1024
# A policy may allow large results.
_ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
# Detects a peer that disappeared, even between calls.
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 30_000, 10_000
# The default of five minutes would end the connection of a waiting client at its third ping.
_LEAST_BETWEEN_PINGS_MS = 10_000
# Keys in documentation, examples and tests, and therefore public.
KNOWN_KEYS = ("alk_...", "alk_x", "alk_guess", "alk_wrong", "alk_nobodys", "alk_test", "alk_example", "alk_changeme")


def server_options(*, shared: bool) -> tuple[tuple[str, int], ...]:
    """Return the options of a server; the kernel distributes the connections of a shared port among workers."""
    return (
        ("grpc.max_receive_message_length", _REQUEST_LIMIT_BYTES),
        ("grpc.max_send_message_length", _ANSWER_LIMIT_BYTES),
        ("grpc.so_reuseport", int(shared)),
        # Otherwise a stream's window grows to megabytes on a fast connection, and the core buffers as much of each
        # unread stream. While a message is being read, the window grows to the message's size in any case.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", _STREAMS_OF_A_CONNECTION),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_BETWEEN_PINGS_MS),
    )


def make_server(*interceptors: Any, shared: bool) -> PrefetchingServer:
    """Return a server without services."""
    return PrefetchingServer(_OFTEN, interceptors, server_options(shared=shared), CONCURRENT_RPCS)


def bind(server: PrefetchingServer, listen: str, config: Config) -> str:
    """Make a server listen and return its HOST:PORT; Misconfigured if it cannot."""
    host, _ = host_and_port(listen)
    credentials = server_credentials(config.tls, config.path) if config.tls is not None else None
    try:
        bound = server.add_port(listen, credentials)
    except RuntimeError as error:
        raise unusable(listen) from error
    return f"{host}:{bound}"


def host_and_port(listen: str, option: str = "--listen") -> tuple[str, int]:
    """Split HOST:PORT; Misconfigured for anything else, which names the option that it is the value of."""
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise Misconfigured(f"{option} {listen!r}: must be HOST:PORT, such as 127.0.0.1:7443")
    return host, int(port)


def is_loopback(listen: str, option: str = "--listen") -> bool:
    """Return whether only this machine reaches an address; any name other than localhost may be public."""
    host = host_and_port(listen, option)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_taken(listen: str, option: str = "--listen") -> None:
    """Raise Misconfigured for an address in use: grpc would report it late and less clearly."""
    try:
        _bind_alone(listen, option)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise unusable(listen, option) from error
        # grpc judges other errors: it tries more than this one address.


@contextlib.contextmanager
def reserved(listen: str, option: str = "--listen") -> Iterator[str]:
    """Reserve an address for workers, a free port for port 0, until the block ends, without listening.

    A program that does not share its port makes the bind fail, and this makes its bind fail.
    """
    with contextlib.ExitStack() as stack:
        try:
            # This also detects another gateway of this user that shares the port: each connection would go to either.
            family, kind, protocol, _, address = _bind_alone(listen, option)
            reserving = stack.enter_context(socket.socket(family, kind, protocol))
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserving.bind(address)
        except OSError as error:
            raise unusable(listen, option) from error
        yield f"{host_and_port(listen)[0]}:{reserving.getsockname()[1]}"


def _bind_alone(listen: str, option: str) -> tuple[Any, ...]:
    """Bind an address, without sharing its port, and release it; return it as getaddrinfo does. Raises OSError."""
    host, port = host_and_port(listen, option)
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(address)
    return found[0]


def unusable(listen: str, option: str = "--listen") -> Misconfigured:
    """Return the error for an address that cannot be bound."""
    return Misconfigured(f"{option} {listen}: the port is in use, or the address does not belong to this machine")


def refuse_open_files(config: Config) -> None:
    """Raise Misconfigured for a state directory or a database that every user of the machine can read."""
    database = file_of(config.resolved_database_url())
    for path in (config.path(one) for one in (config.state_dir, database) if one is not None):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # it is created at the start, for its owner alone
        if mode & stat.S_IRWXO and _reachable(path):
            wanted = "700" if path.is_dir() else "600"
            raise Misconfigured(
                f"{path} is readable by every user of this machine and contains key digests, policies and agents' "
                f"records: run `chmod {wanted} {path}`"
            )


def refuse_plaintext(config: Config, listen: str, *, insecure: bool, option: str = "--listen") -> None:
    """Raise Misconfigured if keys and results would cross a network unencrypted."""
    if config.tls is None and not insecure and not is_loopback(listen, option):
        raise Misconfigured(
            f"{option} {listen} is reachable from other machines, and without TLS, keys and results cross the "
            f"network unencrypted: configure `tls: {{certificate: FILE, key: FILE}}`, listen on 127.0.0.1, or "
            f"pass --insecure-plaintext if a proxy in front of the gateway terminates TLS"
        )


def refuse_unconfined(config: Config, listen: str, *, workers: int, option: str = "--listen") -> None:
    """Raise Misconfigured if other machines could run commands in the in-memory engine.

    That engine confines nothing: its callers have the rights of the gateway.
    """
    if config.sandbox.engine != "memory":
        return
    if not is_loopback(listen, option):
        raise Misconfigured(
            f"{option} {listen} is reachable from other machines, and with `sandbox.engine: memory` every command "
            "runs unconfined on this machine as the gateway's user: listen on 127.0.0.1, or use `engine: docker`"
        )
    if workers > 1:
        raise Misconfigured(
            "--workers: `sandbox.engine: memory` works in one process only: omit --workers, or use `engine: docker`"
        )


async def refuse_known_keys(database: Database) -> None:
    """Raise Misconfigured if a public key is valid."""
    store = KeyStore(database)
    for key in KNOWN_KEYS:
        found = await store.find(digest_of(key))
        if found is not None:
            raise Misconfigured(
                f"the example key {key} from the documentation is valid for tenant "
                f"{found.tenant or 'of operators'}: revoke it with `airlock key revoke {found.id}` and create "
                "another with `airlock key create`"
            )


def _reachable(path: Path) -> bool:
    """Return whether other users can reach a path; one closed directory above it keeps them out."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
