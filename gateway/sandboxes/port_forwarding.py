"""Connections of a tenant's services to ports that programs in its sandboxes listen on, each with its audit entry."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from agent.cancellation import to_the_end
from gateway.credentials.caller import actor
from gateway.errors import AirlockError, Cancelled, Unavailable
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.storage.audit_store import AuditEntry
from gateway.support.clock import make_id
from gateway.tenancy.quotas import BYTES, CallQuota
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls
from sandbox.errors import DaemonLost
from sandbox.keeper.leases import Leases
from sandbox.sandbox import Sandbox

PIECE_BYTES = 256 * 1024
"""The most that is received, and that a message holds."""
_RECORD_S = 10.0


@dataclass(eq=False)
class ForwardedConnection:
    """One connection. It holds no buffer: what is not received, or not sent, holds up its other end."""

    port: int
    bytes_up: int = field(init=False, default=0)
    bytes_down: int = field(init=False, default=0)
    _sandbox: Sandbox
    _tunnel: socket.socket
    _aborted: asyncio.Future[Exception] = field(init=False, default_factory=asyncio.Future)

    async def receive(self) -> bytes:
        """Return what the program has sent, PIECE_BYTES at most and nothing at its end.

        Raises what the connection was aborted with, DaemonLost if the sandbox is gone, Unavailable after a reset.
        """
        try:
            data = await asyncio.get_running_loop().sock_recv(self._tunnel, PIECE_BYTES)
        except OSError as error:
            await self._check()
            raise Unavailable(f"the program at port {self.port} reset the connection: connect again") from error
        if not data:
            await self._check()
        self.bytes_down += len(data)
        return data

    async def send(self, data: bytes) -> bool:
        """Send to the program; return False if it takes no more."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._tunnel, data)
        except OSError:
            return False
        self.bytes_up += len(data)
        return True

    def end(self) -> None:
        """Send no more."""
        self._shut(socket.SHUT_WR)

    def abort(self, failure: Exception) -> None:
        """End both directions; receive() raises `failure`."""
        if not self._aborted.done():
            self._aborted.set_result(failure)
            self._shut(socket.SHUT_RDWR)

    async def wait_for(self, sending: asyncio.Task[None]) -> None:
        """Wait until a task has sent everything; raise what the connection was aborted with, if it was."""
        waiting: tuple[asyncio.Future[Any], ...] = (sending, self._aborted)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._aborted.done():
            raise self._aborted.result()

    async def _check(self) -> None:
        """Raise why the end that was received is none of the program's own."""
        if self._aborted.done():
            raise self._aborted.result()
        if not await self._sandbox.ping() and not self._sandbox.alive:
            raise DaemonLost("the sandbox was stopped, or it died, while the connection was open")

    def _shut(self, how: int) -> None:
        try:
            self._tunnel.shutdown(how)
        except OSError:  # the other end is gone
            return


class PortForwarding:
    """The open connections of a process."""

    def __init__(self, leases: Leases, admin: SandboxAdmin, tool_calls: ToolCalls) -> None:
        self._leases = leases
        self._admin = admin
        self._tool_calls = tool_calls
        self._open: dict[ForwardedConnection, asyncio.Future[None]] = {}
        self._closed = False

    @asynccontextmanager
    async def connection(self, tenant: Tenant, thread: str, port: int) -> AsyncIterator[ForwardedConnection]:
        """Connect to a port of a thread's sandbox, which is leased until the block ends; no sandbox is made or started.

        Raises NotFound if the thread has no running sandbox, or if nothing listens; QuotaExceeded, InvalidArgument, and
        Unrecorded at the end.
        """
        by, started_s, outcome = actor(), time.monotonic(), "failed"
        connection: ForwardedConnection | None = None
        try:
            async with self._leases.acquire_existing(tenant.sandbox_spec(thread)) as sandbox:
                if sandbox is None:
                    raise await self._admin.missing(tenant, thread)
                quotas, place = tenant.policy.document.quotas, CallQuota(make_id("forward"))
                await self._tool_calls.quotas.check_stored(tenant.name, quotas)
                await self._tool_calls.quotas.take_call(tenant.name, place, (), quotas)
                with closing(await sandbox.network.connect(port)) as tunnel:
                    connection = ForwardedConnection(port, sandbox, tunnel)
                    self._open[connection] = asyncio.get_running_loop().create_future()
                    if self._closed:
                        connection.abort(_stopping())
                    yield connection
                    outcome = "completed"
        except (asyncio.CancelledError, GeneratorExit, Cancelled):  # the caller left
            outcome = "cancelled"
            raise
        finally:
            if connection is not None:
                duration_us = round((time.monotonic() - started_s) * 1_000_000)
                entry = _entry(tenant, thread, connection, actor=by, outcome=outcome, duration_us=duration_us)
                await to_the_end(self._ended(tenant, connection, entry))

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        for connection in self._open:
            connection.abort(_stopping())

    async def settled(self) -> None:
        """Wait until what has ended is on record."""
        if self._open:
            await asyncio.wait(self._open.values(), timeout=_RECORD_S)

    async def _ended(self, tenant: Tenant, connection: ForwardedConnection, entry: AuditEntry) -> None:
        try:
            moved = {BYTES: entry.size_bytes}
            await self._tool_calls.quotas.add(tenant.name, tenant.policy.document.quotas, moved)
            await self._tool_calls.record(entry)
        finally:
            self._open.pop(connection).set_result(None)


def _stopping() -> AirlockError:
    return Unavailable("the gateway is shutting down: connect again when it is back")


def _entry(
    tenant: Tenant, thread: str, connection: ForwardedConnection, *, actor: str, outcome: str, duration_us: int
) -> AuditEntry:
    moved = {"bytes_up": connection.bytes_up, "bytes_down": connection.bytes_down}
    return AuditEntry(
        tenant.name,
        "forward",
        actor,
        thread=thread,
        outcome=outcome,
        size_bytes=sum(moved.values()),
        duration_us=duration_us,
        details={"port": connection.port, **moved},
    )
