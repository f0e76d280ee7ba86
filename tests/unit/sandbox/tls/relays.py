"""A relay in this event loop, beside a socket whose answers a test writes."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from sandbox.client.channel import Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.tls_address import TlsAddress
from sandbox.client.unix_address import SOCKET_NAME
from sandbox.tls.identity import gateway_name, sandbox_name
from sandbox.tls.server import Relay

INSTANCE = "i1"
NAME = sandbox_name(INSTANCE, "s1", ("tenant-a", "thread-a"), 7)


@cache
def authority(instance: str = INSTANCE, *, age_days: int = 0) -> ChannelAuthority:
    """Return an authority whose clock is late by some days."""
    with tempfile.TemporaryDirectory() as directory:
        return ChannelAuthority.open(
            Path(directory) / "channels.pem", instance, now=lambda: datetime.now(UTC) - timedelta(days=age_days)
        )


@dataclass(frozen=True)
class Beside:
    """The relay beside a daemon, and where it is."""

    relay: Relay
    address: TlsAddress

    @property
    def target(self) -> tuple[str, int]:
        return self.address.host, self.address.port

    def channel(self) -> Channel:
        return Channel(self.address)

    def addressed(self, **changes: object) -> TlsAddress:
        return replace(self.address, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def relayed(
    directory: Path, *, identity: bytes = b"", pooled: str = "", name: str = NAME
) -> AsyncIterator[Beside]:
    """Run a relay to the daemon's socket in a directory; at the end, assert that nothing of it is left."""
    mine = authority()
    relay = Relay(
        str(directory / SOCKET_NAME),
        identity or mine.sandbox_identity(name),
        mine.ca_pem,
        gateway_name(INSTANCE),
        pooled=pooled,
    )
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        task = asyncio.ensure_future(relay.accept_from(listener, refuse_own=False))
        address = TlsAddress(*listener.getsockname(), name, mine.contexts)
        try:
            yield Beside(relay, address)
            await until(lambda: not relay._established and not address._relays)
        finally:
            for one in {task, *relay._handshakes, *relay._established}:
                one.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.005)


class Raw:
    """A daemon's socket as bytes: each connection is handed out."""

    def __init__(self, directory: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / SOCKET_NAME))
        self._listener.listen(512)
        self._listener.setblocking(False)

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(10):
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        connection.setblocking(False)
        return connection

    def idle(self) -> bool:
        """Return whether nobody has connected that was not accepted."""
        try:
            self._listener.accept()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._listener.close()
