"""A request that a client makes in HTTP/2, for a server that speaks HTTP/1.1 only."""

import asyncio
from collections.abc import Callable
from typing import Never

import h11
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded, TrailersReceived

from gateway.network.http2_end import End
from gateway.network.http_client import RelayLimits, Streams, first_of
from gateway.network.http_request import Headers, ProxyRequest, bad, end_to_end, trailers
from gateway.network.http_transfer import Transfer
from gateway.network.upstream import Exchange


def lowered(headers: Headers) -> Headers:
    """Return headers as HTTP/2 writes them."""
    return tuple((name.lower(), value) for name, value in headers)


class Translated:
    """Satisfies http_transfer.Asking, for one stream; `answering`: the head of an answer was sent to the client."""

    speaks_http11 = True

    def __init__(self, client: End, stream: int, request: ProxyRequest, exchange: Exchange, *, ended: bool) -> None:
        self.stream = stream
        self.is_complete = self.answering = False
        self._client = client
        self._request = request
        self._exchange = exchange
        self._has_body = not ended

    async def run(self, server: Streams, count: Callable[[int, int], None], limits: RelayLimits) -> None:
        """Pass the request and its answer on. Raises Refused, StreamGone and EndGone."""
        known = any(name.lower() == b"content-length" for name, _ in self._exchange.headers)
        more = ((b"Transfer-Encoding", b"chunked"),) if self._has_body and not known else ()
        transfer = Transfer(self, server, self._request, self._exchange, count, more)
        try:
            async with transfer.limited(limits.idle_s):
                await first_of(transfer.receive(), transfer.send())
        except h11.LocalProtocolError as error:
            raise bad(f"the request is malformed: {str(error)[:200]}") from error
        except TimeoutError as error:
            raise transfer.failed("gateway_timeout", "no byte moved for too long", 504) from error
        if not self.is_complete:
            self._client.reset(self.stream, ErrorCodes.NO_ERROR)  # the rest is not wanted (RFC 9113, 8.1)

    async def read_body(self) -> h11.Data | h11.EndOfMessage:
        """Read the next piece of the body. Raises StreamGone and EndGone."""
        while True:
            event = await self._client.arrivals[self.stream].next()
            if isinstance(event, DataReceived):
                await self._client.taken(self.stream, event)
                return h11.Data(data=event.data)
            if isinstance(event, TrailersReceived | StreamEnded):
                self.is_complete = True
                tail = trailers(event.headers) if isinstance(event, TrailersReceived) else ()
                return h11.EndOfMessage(headers=list(tail))

    async def send(self, *events: h11.Event) -> None:
        """Send parts of the answer. Raises StreamGone and EndGone."""
        for event in events:
            if isinstance(event, h11.Response | h11.InformationalResponse):
                self.answering = self.answering or isinstance(event, h11.Response)
                headers = end_to_end(event.headers.raw_items())
                kept = [(name, value) for name, value in lowered(headers) if name != b"transfer-encoding"]
                await self._client.send_headers(self.stream, [(b":status", b"%d" % event.status_code), *kept])
            elif isinstance(event, h11.Data):
                await self._client.send_data(self.stream, bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._client.send_trailers(self.stream, lowered(tuple(event.headers.raw_items())))

    async def watch(self) -> Never:
        """Wait: a client that withdraws the request has its task cancelled."""
        await asyncio.Event().wait()
        raise AssertionError  # unreachable
