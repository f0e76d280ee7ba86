"""The relay beside a daemon: accepts TLS connections of the gateway, and connects each to the daemon's socket.

A peer that is not the gateway costs one of a few handshakes for a short time. When they are all taken the oldest is
dropped, so a peer that opens many, or never finishes one, does not keep the gateway out, which needs only a moment.
"""

# ruff: noqa: T201 - what a container prints is its log

import asyncio
import contextlib
import os
import socket
import sys
from functools import partial

from sandbox.tls.identity import CLAIM_PROTOCOL, IDENTITY_LIMIT_BYTES, READY, server_context
from sandbox.tls.own_addresses import is_own
from sandbox.tls.relay import prepare, relay
from sandbox.tls.stream import TlsStream

HANDSHAKES_LIMIT = 64
HANDSHAKE_TIMEOUT_S = 5.0
# The daemon serves 512 connections, and as many wait at its socket.
CONNECTIONS_LIMIT = 1024


class Relay:
    """Serves one daemon.

    `pooled` is the id of a sandbox whose identity has no owner yet: the gateway may replace it, once, and says which
    sandbox it means. Many may share the first identity, so an address that leads to another one gives it no owner.
    """

    def __init__(self, daemon_socket: str, identity: bytes, authority: str, gateway: str, *, pooled: str = "") -> None:
        self._daemon_socket = daemon_socket
        self._authority = authority
        self._gateway = gateway
        self._pooled = pooled
        self._context = server_context(identity, authority)
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._established: set[asyncio.Task[None]] = set()

    async def accept_from(self, listener: socket.socket, *, refuse_own: bool) -> None:
        """Accept connections forever; with `refuse_own` none from this network's own addresses."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                print(f"airlock channel: cannot accept: {error}", file=sys.stderr)
                await asyncio.sleep(0.05)  # no descriptors left; connections will free some
                continue
            if (refuse_own and is_own(peer[0])) or len(self._established) >= CONNECTIONS_LIMIT:
                connection.close()
                continue
            if len(self._handshakes) >= HANDSHAKES_LIMIT:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = loop.create_task(self._serve(connection))
            self._handshakes[task] = None
            task.add_done_callback(partial(self._forget, connection))
            await asyncio.sleep(0)  # sock_accept() does not wait while there are more

    def _forget(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # a task that is cancelled before its first step closes nothing
        self._handshakes.pop(task, None)
        self._established.discard(task)

    async def _serve(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        # Whatever a peer does ends its own connection, and is no reason to write to the log.
        with connection, contextlib.suppress(OSError, TimeoutError):
            prepare(connection)
            stream = TlsStream(connection, self._context, server_side=True)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await stream.handshake()
                if stream.peer_names != (f"URI:{self._gateway}",) or stream.protocol is None:
                    return
            self._handshakes.pop(task, None)
            self._established.add(task)
            if stream.protocol == CLAIM_PROTOCOL:
                await self._be_claimed(stream, task)
                return
            plain = await self._daemon()
            try:
                await stream.write(memoryview(READY))
            except BaseException:
                plain.close()
                raise
            await relay(plain, stream, hangup_cancels=False)

    async def _daemon(self) -> socket.socket:
        """Return a connection to the daemon; raises OSError, with the reason, where there is none."""
        # Never through a link: a daemon may have replaced its socket with one.
        pinned = os.open(self._daemon_socket, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                while True:
                    try:
                        plain.connect(f"/proc/self/fd/{pinned}")
                    except BlockingIOError:  # its backlog is full, and nothing tells of free space
                        await asyncio.sleep(0.002)
                    else:
                        return plain
        except BaseException:
            plain.close()
            raise
        finally:
            os.close(pinned)

    async def _be_claimed(self, stream: TlsStream, claim: asyncio.Task[None]) -> None:
        """Replace the identity, and end every connection that was made under the old one."""
        given = b""
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            while piece := await stream.read():
                given += piece
                if len(given) > IDENTITY_LIMIT_BYTES:
                    return
        meant, _, identity = given.partition(b"\n")
        context = server_context(identity, self._authority)
        # Nothing is awaited between this and the next lines, so one claim of many succeeds.
        if not self._pooled or meant != self._pooled.encode():
            return
        self._pooled, self._context = "", context
        for other in {*self._handshakes, *self._established} - {claim}:
            other.cancel()
        await stream.write(memoryview(READY))
        await stream.end()
