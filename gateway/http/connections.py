"""What one HTTP connection may cost: the time and size of a request's head, and connections by host.

The bodies and answers of requests have their limits in app.py and calls.py.
"""

import asyncio
import ssl
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import Overloaded
from gateway.serving.limits import AnonymousConnections

log = structlog.get_logger(__name__)
HEAD_TIMEOUT_S = 20.0
HEAD_LIMIT_BYTES = 64 * 1024
# A proxy in front of the gateway has one host.
CONNECTIONS, CONNECTIONS_OF_A_HOST = 1024, 768
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection. A class of its own for each listener has `counted`, and the time for a head."""

    counted: AnonymousConnections
    head_timeout_s = HEAD_TIMEOUT_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._gone = asyncio.Event()
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._counted: Any = None
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = secured.getpeercert(binary_form=True) if secured is not None else None
        pem = None if certificate is None else ssl.DER_cert_to_PEM_cert(certificate).encode()
        # What requests know of their connection, as request.state.
        self.app_state = {"certificate": pem, "gone": self._gone, "abort": transport.abort}
        host, port = (self.client or ("", 0))[:2]
        peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        try:
            self._counted = self.counted.one(peer)
        except Overloaded:
            transport.write(_BUSY)
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        if self._counted is not None:
            self._counted.close()
        super().connection_lost(exc)
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request, unlike its annotation
        waits = cycle is None or cycle.response_complete
        if waits:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._await_head()
        super().data_received(data)
        # What follows a head in the same piece is its body.
        if waits and self._head_timer is not None and self._head_bytes > HEAD_LIMIT_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; white space after a value is no part of it (RFC 9110), and the parser leaves it there."""
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its peer has not read the last answer."""
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def _head_came(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        log.debug("a request did not arrive in time", peer=self.client)
        self.transport.abort()
