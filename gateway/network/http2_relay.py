"""HTTP/2 of one client, in TLS that was opened: each stream is a request that is judged by itself.

The server is dialled for the first request that is allowed. If it speaks only HTTP/1.1, the requests that the client
has begun are translated (http2_translated.py), one after the other, and the client's connection ends; its next one is
offered HTTP/1.1.

As in HTTP/1.1 (http_relay.py), messages are parsed and written anew, bodies are streamed, and what a server breaks off
the client sees broken off.
"""

import asyncio
from contextlib import suppress

import h11
import structlog
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from agent.cancellation import ended
from gateway.network.http2_end import Arrivals, End, EndGone, Fields, StreamGone, StreamUnserved, header_bytes
from gateway.network.http2_translated import Translated, lowered
from gateway.network.http_client import RelayLimits, Streams
from gateway.network.http_request import (
    Origin,
    ProxyRequest,
    Refused,
    bad,
    check_answer,
    check_field_count,
    end_to_end,
    read_request,
    refusal,
    trailers,
)
from gateway.network.upstream import Exchange, Upstream

log = structlog.get_logger(__name__)

_LIMITS = RelayLimits()
_FINISH_S = 1.0
_LIMIT_RESETS = 1000


async def relay_http2(client: Streams, upstream: Upstream, *, origin: Origin, limits: RelayLimits = _LIMITS) -> None:
    """Serve the connection of a client that has negotiated h2 to its end, and close it."""
    relay = _Relay(End(client, client_side=False), upstream, origin, limits)
    try:
        await relay.run()
        client[1].close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_FINISH_S):
                await client[1].wait_closed()
    finally:
        client[1].transport.abort()  # its socket is closed next
        if relay.server is not None:
            relay.server.writer.transport.abort()


class _Relay:
    """The client's end, the server's once a request is allowed, and a task for each request.

    `leaves`: the connection ends when no request is under way.
    """

    def __init__(self, client: End, upstream: Upstream, origin: Origin, limits: RelayLimits) -> None:
        self.client = client
        client.closes_with = self._closes_with
        self.server: End | None = None
        self.upstream = upstream
        self.origin = origin
        self.leaves = False
        self._limits = limits
        self._now = asyncio.get_running_loop().time
        self._active_at = self._now()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._judging = 0
        self._last_begun = 0
        self._resets = 0
        self._has_failed = False
        self._dialling = asyncio.Lock()
        self._dialled = asyncio.Event()
        self._left = asyncio.Event()
        self._in_turn = asyncio.Lock()

    async def run(self) -> None:
        reading = [asyncio.create_task(self._read_client()), asyncio.create_task(self._read_server())]
        ends = [*reading, asyncio.create_task(self._left.wait())]
        try:
            while not any(task.done() for task in ends):
                left_s = self._active_at + self._limits.idle_s - self._now()
                if left_s <= 0 and not self._judging:
                    break
                wait_s = left_s if left_s > 0 else self._limits.idle_s
                await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if self.server is not None and reading[1].done() and not reading[0].done():
                for arrivals in self.server.arrivals.values():
                    arrivals.queue.put_nowait(None)
                if self._tasks:
                    await asyncio.wait(self._tasks.values(), timeout=_FINISH_S)
        finally:
            results = await ended(*ends, *self._tasks.values())
            with suppress(H2Error):
                self.client.http.close_connection()
                self.client.write()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, EndGone):
                raise result

    def moved(self, up: int, down: int) -> None:
        self._active_at = self._now()
        self.upstream.moved(up, down)

    async def _read_client(self) -> None:
        await self.client.start()
        while True:
            for event in await self.client.read():
                if isinstance(event, RequestReceived):
                    self._begin(event)
                elif isinstance(event, StreamReset):
                    self._reset(event.stream_id)
                else:
                    self.client.arrived(event)
            self.client.check_untaken()

    async def _read_server(self) -> None:
        await self._dialled.wait()
        server = self.server
        while server is not None and not (server.leaving and not self._tasks):
            for event in await server.read():
                server.arrived(event)
            server.check_untaken()

    def _reset(self, stream: int) -> None:
        self._resets += 1
        if self._resets > _LIMIT_RESETS:
            raise EndGone("too many requests were withdrawn")
        if task := self._tasks.get(stream):
            task.cancel()

    def _begin(self, event: RequestReceived) -> None:
        stream, size = event.stream_id, header_bytes(event.headers)
        if self.client.closed:
            return  # the client knows that it is not served
        self._last_begun = stream
        leaving = self._left.is_set() or (self.server is not None and self.server.leaving)
        if leaving or not self.client.has_room(size):
            self.client.reset(stream, ErrorCodes.REFUSED_STREAM)
            return
        self.client.arrivals[stream] = Arrivals(untaken_header_bytes=size)
        task = asyncio.create_task(self._serve(stream, event))
        self._tasks[stream] = task
        task.add_done_callback(lambda _: self._ended(stream))

    def _ended(self, stream: int) -> None:
        self._tasks.pop(stream, None)
        self.client.forget(stream)
        if self.leaves and not self._tasks:
            self._left.set()

    def _closes_with(self, stream: int) -> int:
        arrivals = self.client.arrivals.get(stream)
        is_last = self.leaves and self._tasks.keys() == {stream} and arrivals is not None and arrivals.ended
        return self._last_begun if is_last else 0

    async def _connect(self) -> Streams | None:
        """Dial, unless it was done; return the server's connection if that speaks HTTP/1.1. Raises Refused."""
        async with self._dialling:
            if self.server is not None or self.leaves:
                return None
            try:
                streams, speaks_http2 = await self.upstream.dial_http2(self.origin)
            except Refused:
                self.leaves = True  # the client's next connection has another try
                raise
            if not speaks_http2:
                self.leaves = True
                return streams
            self.server = End(streams, client_side=True)
            await self.server.start()
            self._dialled.set()
            return None

    async def _judge(self, request: ProxyRequest) -> Exchange:
        self._judging += 1
        try:
            return await self.upstream.judge(request)
        finally:
            self._judging -= 1
            self._active_at = self._now()

    async def _serve(self, stream: int, event: RequestReceived) -> None:
        exchange: _Stream | Translated | None = None
        request = None
        try:
            request = _request(event.headers, self.origin)
            length = next((int(value) for name, value in request.headers if name.lower() == b"content-length"), None)
            if length and event.stream_ended is not None:
                raise bad("the request has no body, but its length says otherwise")
            self.client.arrivals[stream].announced_bytes = length
            judged = await self._judge(request)
            streams = await self._connect()
            if self.server is not None:
                await self.client.widen(stream)
                exchange = _Stream(self, self.server, stream, request, judged)
                await exchange.run()
            else:
                exchange = Translated(self.client, stream, request, judged, ended=event.stream_ended is not None)
                await self._translate(exchange, streams)
        except Refused as refused:
            self.upstream.refused(refused, request)
            if exchange is not None and exchange.answering:
                self.client.reset(stream, ErrorCodes.CANCEL)
            else:
                await self._answer(stream, refused, request)
        except StreamUnserved:
            self.client.reset(stream, ErrorCodes.REFUSED_STREAM)
        except StreamGone:
            self.client.reset(stream, ErrorCodes.CANCEL)
        except EndGone:
            pass  # the reading ends for the same reason
        except asyncio.CancelledError:
            self.client.reset(stream, ErrorCodes.CANCEL)
            raise
        except Exception:  # no fault may leave a client waiting
            if not self._has_failed:
                log.exception("a request failed", host=self.origin.host, port=self.origin.port)
            self._has_failed = True
            self.client.reset(stream, ErrorCodes.INTERNAL_ERROR)

    async def _translate(self, exchange: Translated, streams: Streams | None) -> None:
        """Pass on a request to a server that speaks HTTP/1.1: over the connection just dialled, or one in its turn."""
        try:
            async with self._in_turn:
                streams = streams or await self.upstream.dial(self.origin)
                await self.client.widen(exchange.stream)
                await exchange.run(streams, self.moved, self._limits)
        finally:
            if streams is not None:
                streams[1].transport.abort()

    async def _answer(self, stream: int, refused: Refused, request: ProxyRequest | None) -> None:
        body = refused.content
        fields = [
            (b":status", str(refused.status).encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        with suppress(StreamGone, EndGone):
            bodiless = request is not None and request.method == "HEAD"
            await self.client.send_headers(stream, fields, end=bodiless)
            if not bodiless:
                await self.client.send_data(stream, body, end=True)
            if not self.client.arrivals[stream].ended:
                self.client.reset(stream, ErrorCodes.NO_ERROR)  # the rest is not wanted (RFC 9113, 8.1)


class _Stream:
    """One request and its answer; `answering`: its head was sent to the client."""

    def __init__(self, relay: _Relay, server: End, stream: int, request: ProxyRequest, exchange: Exchange) -> None:
        self.answering = False
        self._relay = relay
        self._server = server
        self._stream = stream
        self._request = request
        self._exchange = exchange

    async def run(self) -> None:
        server = self._server
        head = self._head()
        self._relay.moved(header_bytes(head), 0)
        there = await server.open_stream(head)
        sending = asyncio.create_task(self._send(there))
        receiving = asyncio.create_task(self._receive(there))
        try:
            # An answer may end before its request.
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                sending.result()
            await receiving
        finally:
            sent, received = _succeeded(sending), _succeeded(receiving)
            await ended(sending, receiving)
            if not (sent and received):
                server.reset(there, ErrorCodes.CANCEL)
            if received and not sent:
                self._relay.client.reset(self._stream, ErrorCodes.NO_ERROR)
            server.forget(there)

    def _head(self) -> Fields:
        request = self._request
        head = [
            (b":method", request.method.encode()),
            (b":scheme", request.origin.scheme.encode()),
            (b":authority", request.origin.authority.encode()),
            (b":path", request.target.encode()),
        ]
        # gRPC asks for trailers; nothing else is hop-by-hop in HTTP/2.
        return [*head, *lowered(self._exchange.headers), (b"te", b"trailers")]

    async def _send(self, there: int) -> None:
        client, server = self._relay.client, self._server
        arrivals = client.arrivals[self._stream]
        while True:
            event = await arrivals.next()
            if isinstance(event, DataReceived):
                self._exchange.sent(event.data)
                self._relay.moved(len(event.data), 0)
                await server.send_data(there, event.data)
                await client.taken(self._stream, event)
            elif isinstance(event, TrailersReceived):
                tail = trailers(event.headers)
                for name, value in tail:
                    self._exchange.sent(b"%s: %s\r\n" % (name, value))
                self._relay.moved(header_bytes(tail), 0)
                await server.send_trailers(there, tail)
                return
            elif isinstance(event, StreamEnded):
                await server.send_data(there, b"", end=True)
                return

    async def _receive(self, there: int) -> None:
        client, server = self._relay.client, self._server
        hints = 0
        try:
            while True:
                event = await server.arrivals[there].next()
                if isinstance(event, DataReceived):
                    self._relay.moved(0, len(event.data))
                    await client.send_data(self._stream, self._exchange.received(event.data))
                    await server.taken(there, event)
                elif isinstance(event, ResponseReceived | InformationalResponseReceived):
                    hints += isinstance(event, InformationalResponseReceived)
                    check_answer(self._request.origin, _field_count(event.headers), hints)
                    self._relay.moved(0, header_bytes(event.headers))
                    await self._send_head(event)
                    await asyncio.sleep(0)  # many may have arrived at once: others have their turn between them
                elif isinstance(event, TrailersReceived):
                    check_answer(self._request.origin, _field_count(event.headers))
                    self._relay.moved(0, header_bytes(event.headers))
                    await client.send_data(self._stream, self._exchange.flush())
                    tail = self._exchange.answered(trailers(event.headers))
                    await client.send_trailers(self._stream, lowered(tail))
                    return
                elif isinstance(event, StreamEnded):
                    await client.send_data(self._stream, self._exchange.flush(), end=True)
                    return
        except StreamGone as gone:
            if self.answering or isinstance(gone, StreamUnserved):
                raise
            raise refusal(502, "bad_gateway", "the server broke off the request", self._request.origin) from None

    async def _send_head(self, event: ResponseReceived | InformationalResponseReceived) -> None:
        status = next(value for name, value in event.headers if name == b":status")
        headers = tuple((name, value) for name, value in event.headers if not name.startswith(b":"))
        fields = [(b":status", status), *lowered(self._exchange.answered(end_to_end(headers)))]
        self.answering = self.answering or isinstance(event, ResponseReceived)
        await self._relay.client.send_headers(self._stream, fields)


def _field_count(fields: Fields) -> int:
    return sum(name[:1] != b":" for name, _ in fields)


def _request(fields: Fields, origin: Origin) -> ProxyRequest:
    """Read a request's head by the rules for HTTP/1.1. Raises Refused."""
    check_field_count(_field_count(fields))
    named = dict(fields)
    if named.get(b":scheme") != origin.scheme.encode() or b":protocol" in named:
        raise bad("only plain requests to this server are relayed")
    authority = named.get(b":authority", named.get(b"host", b""))
    headers = [(name, value) for name, value in fields if name[:1] != b":" and name not in (b"host", b"cookie")]
    if cookies := [value for name, value in fields if name == b"cookie"]:  # in HTTP/1.1 they are one header
        headers.append((b"cookie", b"; ".join(cookies)))
    if named.get(b"host", authority) != authority:
        raise bad("the header Host is not the host of the request")
    try:
        event = h11.Request(
            method=named.get(b":method", b""), target=named.get(b":path", b""), headers=[(b"Host", authority), *headers]
        )
    except h11.LocalProtocolError as error:
        raise bad(f"the request is malformed: {str(error)[:200]}") from error
    if b"transfer-encoding" in named:
        raise bad("HTTP/2 has no Transfer-Encoding")
    return read_request(event, origin)


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
