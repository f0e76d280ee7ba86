"""What HTTP connections may cost: connections by host, the time and size of a request's head, requests sent ahead.

The bodies and answers of requests have their limits in app.py and calls.py.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import Overloaded
from gateway.serving.limits import AnonymousConnections, Ends
from gateway.support.hosts import peer_at

log = structlog.get_logger(__name__)
HEAD_TIMEOUT_S = 20.0
HEAD_LIMIT_BYTES = 64 * 1024
# Each takes memory before the answer to the one before it was read.
REQUESTS_AHEAD = 16
# A proxy in front of the gateway has one host.
CONNECTIONS, CONNECTIONS_OF_A_HOST = 1024, 768
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class CountingSocket(socket.socket):
    """A listening socket that counts connections from their acceptance on, and so also during a TLS handshake."""

    def __init__(self, bound: socket.socket) -> None:
        """Take the place of `bound`."""
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._counted = AnonymousConnections(of_connection=1, of_host=CONNECTIONS_OF_A_HOST, in_all=CONNECTIONS)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection and its address; ConnectionAbortedError, which asyncio ignores, if it is one too many."""
        accepted, address = super().accept()
        try:
            return _Counted(accepted, self._counted.one(peer_at(*address[:2]))), address
        except Overloaded:
            with accepted, contextlib.suppress(OSError):
                accepted.setblocking(False)
                accepted.send(_BUSY)  # with TLS it is an error of the handshake
            raise ConnectionAbortedError from None


class _Counted(socket.socket):
    """A connection that counts until it is closed."""

    def __init__(self, accepted: socket.socket, ends: Ends) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._ends = ends

    def close(self) -> None:
        super().close()
        self._ends.close()


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection."""

    head_timeout_s = HEAD_TIMEOUT_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._gone = asyncio.Event()
        # Received since a head or a piece of a body was complete: of a head, of trailers, of the line of a chunk.
        self._unread_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = secured.getpeercert(binary_form=True) if secured is not None else None
        pem = None if certificate is None else ssl.DER_cert_to_PEM_cert(certificate).encode()
        # What requests know of their connection, as request.state.
        self.app_state = {"certificate": pem, "gone": self._gone, "abort": transport.abort}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._answers() and self._head_timer is None:
            self._await_head()
        self._unread_bytes += len(data)
        super().data_received(data)
        if self._unread_bytes <= HEAD_LIMIT_BYTES or self.transport.is_closing():
            return
        if self._answers():  # also to a request sent ahead, whose trailers may follow
            self.transport.abort()
        else:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, which app.py counts."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; white space after a value is no part of it (RFC 9110), and the parser leaves it there."""
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._head_came()
        if len(self.pipeline) >= REQUESTS_AHEAD:
            raise ValueError("too many requests are sent ahead")  # as for what is no HTTP
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where an answer is under way, no other can be sent."""
        if self._answers():
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its peer has not read the last answer."""
        self.transport.abort()

    def _answers(self) -> bool:
        """Whether an answer is under way."""
        cycle: Any = self.cycle  # None before the first request, unlike its annotation
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def _head_came(self) -> None:
        self._unread_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        log.debug("a request did not arrive in time", peer=self.client)
        self.transport.abort()
