"""What the HTTP relay asks of its other side: policy, addresses, credentials, limits, records."""

from typing import Protocol

from gateway.network.http_client import Streams
from gateway.network.http_request import Headers, Origin, ProxyRequest, Refused


class Exchange(Protocol):
    """What is done with one allowed request and its answer. Each method may raise Refused."""

    @property
    def headers(self) -> Headers:
        """The headers to send, without Host."""

    def sent(self, data: bytes) -> None:
        """Look at the next piece of the request's body, or a trailer, before it is sent."""

    def answered(self, headers: Headers) -> Headers:
        """Return the answer's headers (or trailers) as the client may see them."""

    def received(self, data: bytes) -> bytes:
        """Return what the client may see by now of the answer's body; in the end it is as long as it was."""

    def flush(self) -> bytes:
        """Return what `received` kept back."""


class Upstream(Protocol):
    """The other side of one client's connection."""

    async def judge(self, request: ProxyRequest) -> Exchange:
        """Decide about one request. Raises Refused."""

    async def dial(self, origin: Origin) -> Streams:
        """Connect, in TLS if the scheme is https. Raises Refused, with 502 or 504, if the server cannot be reached.

        The connection serves later requests to the same origin on the same client's connection; each is judged.
        """

    async def dial_http2(self, origin: Origin) -> tuple[Streams, bool]:
        """Connect in TLS, offering HTTP/2 before HTTP/1.1, and return whether the server speaks it. Raises Refused."""

    def refused(self, refused: Refused, request: ProxyRequest | None) -> None:
        """Record that a request was refused, or failed; None if it could not be read."""

    def moved(self, up: int, down: int) -> None:
        """Count bytes to and from servers. Raises Refused if that is enough."""


class PlainExchange:
    """Passes a request and its answer on as they are."""

    def __init__(self, request: ProxyRequest) -> None:
        self.headers = request.headers

    def sent(self, data: bytes) -> None:
        """Any piece may go."""

    def answered(self, headers: Headers) -> Headers:
        return headers

    def received(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""
