"""The address of a daemon on another machine: its relay (sandbox/tls), over TCP with mutual TLS.

A connection is one end of a pair of sockets. Bytes between the other end and the relay go through TLS in this event
loop, so a channel, and the user of a tunnel of it, has a Unix socket here as well.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sandbox.errors import DaemonLost
from sandbox.tls.identity import CHANNEL_PROTOCOL, CLAIM_PROTOCOL, READY
from sandbox.tls.relay import prepare, relay
from sandbox.tls.stream import TlsStream

Contexts = Callable[[str], ssl.SSLContext]
"""Returns the TLS context of a gateway for one of the protocols of sandbox.tls.identity, with a valid certificate."""

_CONNECT_TIMEOUT_S = 5.0
_HUNG_UP = "the relay of the sandbox hung up: it has no daemon yet, or is another gateway's"


class WrongRelay(DaemonLost):
    """What listens has a certificate of the same authority with another name: the sandbox is not there any more."""


@dataclass
class TlsAddress:
    """Satisfies Address: the relay at `host` and `port` whose certificate has the name `name` and no other."""

    host: str
    port: int
    name: str
    contexts: Contexts
    _relays: set[asyncio.Task[None]] = field(default_factory=set, init=False, repr=False)

    async def open(self) -> socket.socket:
        """Return a new connection.

        Raises OSError, such as ConnectionRefusedError, while no relay or no daemon listens and when none answers within
        5 s; DaemonLost when what listens is not the relay of this sandbox, or does not accept this gateway.
        """
        stream = await self._dialled(CHANNEL_PROTOCOL)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        task = asyncio.get_running_loop().create_task(relay(far, stream, hangup_cancels=True))
        self._relays.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._relays.discard(task)
            far.close()  # one that is cancelled before its first step closes neither
            stream.connection.close()

        task.add_done_callback(ended)
        return near

    def close(self) -> None:
        """Connections end with their users; nothing else is kept."""

    def cut(self) -> None:
        """End every connection at once: what is at the other end will not say that it is gone."""
        for task in self._relays:
            task.cancel()

    async def claim(self, sandbox_id: str, identity: bytes) -> None:
        """Give pooled sandbox `sandbox_id` its identity, key and certificate in PEM; its name is another from then on.

        Raises as open(), and DaemonLost when another gateway has claimed the sandbox, or the address is another
        sandbox's.
        """
        stream = await self._dialled(CLAIM_PROTOCOL, before_ready=sandbox_id.encode() + b"\n" + identity)
        stream.connection.close()

    async def _dialled(self, protocol: str, *, before_ready: bytes = b"") -> TlsStream:
        connection = await _connected(self.host, self.port)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                stream = TlsStream(connection, self.contexts(protocol), server_side=False)
                with _explained(self.name):
                    await stream.handshake()
                self._verify(stream, protocol)
                if before_ready:
                    await stream.write(memoryview(before_ready))
                    await stream.end()
                await self._be_ready(stream, protocol)
        except BaseException:
            connection.close()
            raise
        return stream

    def _verify(self, stream: TlsStream, protocol: str) -> None:
        if stream.peer_names != (f"URI:{self.name}",):
            raise WrongRelay(f"the relay at {self.host}:{self.port} is not that of {self.name}, and is not trusted")
        if stream.protocol != protocol:
            raise DaemonLost(f"the relay of the sandbox does not speak {protocol}; rebuild the runtime image")

    async def _be_ready(self, stream: TlsStream, protocol: str) -> None:
        try:
            ready = await stream.read()
        except ssl.SSLError as error:
            raise DaemonLost(f"the relay of the sandbox does not accept this gateway ({_reason(error)})") from error
        except OSError as error:
            if protocol == CLAIM_PROTOCOL:
                raise DaemonLost(
                    "the sandbox cannot be claimed: it is not pooled, was claimed before, or is another one"
                ) from error
            raise ConnectionRefusedError(_HUNG_UP) from error
        if bytes(ready) != READY:
            raise DaemonLost("the relay of the sandbox sent something before it was ready")


async def _connected(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        prepare(connection)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await loop.sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise DaemonLost(f"what listens is not the relay of {name}, and is not trusted ({_reason(error)})") from error


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or "no reason given").lower().replace("_", " ")
