"""One request on its way to one server, and its answer on the way back, at the same time and in pieces."""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Never, Protocol

import h11

from gateway.network.http_client import ANSWER_PIECE_BYTES, Client, RelayLimits, Streams
from gateway.network.http_request import (
    FIELDS_LIMIT,
    Headers,
    ProxyRequest,
    Refused,
    bad,
    check_answer,
    end_to_end,
    refusal,
    trailers,
)
from gateway.network.upstream import Exchange

_UPGRADE = ((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))
# At most FIELDS_LIMIT lines; everything, where no line ends. Short lines come together, for a body may be of them.
_LINES_BYTES = 4096
_LINES = re.compile(rb"(?:[^\n]*\n){1,%d}|[^\n]+" % FIELDS_LIMIT)


class Asking(Protocol):
    """The client's side of one request, in the events of HTTP/1.1. `is_complete`: the request was read to its end."""

    is_complete: bool

    @property
    def speaks_http11(self) -> bool:
        """Whether it understands what HTTP/1.0 has not."""

    async def read_body(self) -> h11.Data | h11.EndOfMessage:
        """Read the next piece of the body."""

    async def send(self, *events: h11.Event) -> None:
        """Send parts of the answer."""

    async def watch(self) -> Never:
        """Raise when the client leaves."""


class Inbound:
    """Satisfies Asking: h11's state, and the connection that its bytes come from."""

    def __init__(self, client: Client, limits: RelayLimits) -> None:
        self.client = client
        self.http = h11.Connection(h11.SERVER, limits.head_bytes)
        self.is_complete = False

    @property
    def speaks_http11(self) -> bool:
        return self.http.their_http_version == b"1.1"

    async def read_request(self) -> h11.Request:
        """Read the head of the request. Raises Refused and ClientGone."""
        self.http.receive_data(await self.client.read_head())
        event = self._next_event()
        if not isinstance(event, h11.Request):
            raise bad("the request has no head")
        return event

    async def read_body(self) -> h11.Data | h11.EndOfMessage:
        """Read the next piece of the body. Raises Refused and ClientGone."""
        while (event := self._next_event()) is h11.NEED_DATA:
            if not self.client.buffer:
                await self.client.fill()
            self.http.receive_data(self.client.take())
        if isinstance(event, h11.EndOfMessage):
            self.is_complete = True
            self.client.buffer[:0] = self.http.trailing_data[0]
            return event
        if isinstance(event, h11.Data):
            return event
        raise bad("the request's body is not where it should be")

    async def send(self, *events: h11.Event) -> None:
        """Send parts of the answer. Raises ClientGone."""
        if data := b"".join(self.http.send(event) or b"" for event in events):
            await self.client.send(data)

    async def watch(self) -> Never:
        """Raise ClientGone when it leaves."""
        await self.client.watch()

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise bad(f"the request is malformed: {str(error)[:200]}", error.error_status_hint) from error


class Transfer:
    """Passes a request and its answer on; `heard`: the server said something, `sent`: it was sent the whole request.

    `count` takes the bytes up and down that have moved, and raises Refused if there were enough. `more` are headers to
    send beside those of the exchange.
    """

    def __init__(
        self,
        inbound: Asking,
        server: Streams,
        request: ProxyRequest,
        exchange: Exchange,
        count: Callable[[int, int], None],
        more: Headers = (),
    ) -> None:
        self.reader, self.writer = server
        self.outbound = h11.Connection(h11.CLIENT, 64 * 1024)
        self.exchange = exchange
        self.heard = self.sent = self.had_body = False
        self._inbound = inbound
        self._request = request
        self._count = count
        self._more = more
        self._unread = b""
        self._has_trailers = True
        self._timer: asyncio.Timeout | None = None
        self._idle_s = 0.0

    @property
    def leaves_server_usable(self) -> bool:
        """Whether the server's connection is where another request may be sent."""
        return set(self.outbound.states.values()) == {h11.DONE} and not self.rest

    @property
    def rest(self) -> bytes:
        """What the server has sent after its answer."""
        return self.outbound.trailing_data[0] + self._unread

    def limited(self, idle_s: float) -> asyncio.Timeout:
        """Return a time limit that begins anew whenever bytes move."""
        self._idle_s = idle_s
        self._timer = asyncio.timeout(idle_s)
        return self._timer

    def moved(self, up: int, down: int) -> None:
        """Count bytes. Raises Refused if there were enough."""
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time() + self._idle_s)
        self._count(up, down)

    def failed(self, error: str, reason: str, status: int = 502) -> Refused:
        """Return the refusal that says what is wrong with the server."""
        return refusal(status, error, reason, self._request.origin)

    async def send(self) -> Never:
        """Send the request, then watch the client. Raises ClientGone and Refused."""
        try:
            await self._send_request()
            self.sent = True
        except OSError:
            pass  # the server may have answered before it closed: `receive` finds out
        await self._inbound.watch()

    async def receive(self) -> None:
        """Pass the answer on, up to its end or to where protocols are switched. Raises ClientGone and Refused."""
        hints = 0
        while True:
            event = await self._answer_event()
            if isinstance(event, h11.InformationalResponse) and event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                await self._switch(event)
                return
            if isinstance(event, h11.InformationalResponse):
                hints += 1
                check_answer(self._request.origin, 0, hints)
                if self._inbound.speaks_http11:
                    await self._inbound.send(self._changed(event))
                await asyncio.sleep(0)  # many may have arrived at once: others have their turn between them
            elif isinstance(event, h11.Response):
                await self._inbound.send(self._changed(event))
            elif isinstance(event, h11.Data):
                if shown := self.exchange.received(event.data):
                    await self._inbound.send(h11.Data(data=shown))
            elif isinstance(event, h11.EndOfMessage):
                await self._end(event)
                return

    async def _send_request(self) -> None:
        headers = [(b"Host", self._request.origin.authority.encode()), *self.exchange.headers, *self._more]
        if self._request.websocket:
            headers += _UPGRADE
        await self._write(h11.Request(method=self._request.method, target=self._request.target, headers=headers))
        tail: list[tuple[bytes, bytes]] = []
        while not self._inbound.is_complete:
            event = await self._inbound.read_body()
            if isinstance(event, h11.Data):
                self.had_body = True
                self.exchange.sent(bytes(event.data))
                await self._write(event)
            else:
                tail += trailers(event.headers.raw_items())
        for name, value in tail:
            self.exchange.sent(b"%s: %s\r\n" % (name, value))
        await self._write(h11.EndOfMessage(headers=tail))

    async def _write(self, event: h11.Event) -> None:
        data = self.outbound.send(event)
        if not data:  # the end of a message may be nothing
            return
        self.moved(len(data), 0)
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)  # many small pieces may have arrived at once: others have their turn between them

    async def _answer_event(self) -> h11.Event:
        while True:
            closed = self.outbound.trailing_data[1]
            try:
                event = self.outbound.next_event()
            except h11.RemoteProtocolError as error:
                # Not in h11's words: they quote the answer, where a credential may be.
                how = "closed the connection before the end of its answer" if closed else "did not answer in HTTP/1.1"
                raise self.failed("bad_gateway", f"the server {how}") from error
            if event is not h11.NEED_DATA:
                assert isinstance(event, h11.Event)  # noqa: S101 - PAUSED is for what comes after the end
                if isinstance(event, h11.Response | h11.InformationalResponse | h11.EndOfMessage):
                    check_answer(self._request.origin, len(event.headers))
                if isinstance(event, h11.Response):
                    self._has_trailers = b"transfer-encoding" in dict(event.headers)
                return event
            # What h11 keeps now are whole lines of a head or of trailers, and the beginning of one more.
            check_answer(self._request.origin, self.outbound.trailing_data[0].count(b"\n") - 1)
            self.outbound.receive_data(await self._read())

    async def _read(self) -> bytes:
        """Return the server's next bytes: few lines while h11 might read them as header fields."""
        if not self._unread:
            try:
                self._unread = await self.reader.read(ANSWER_PIECE_BYTES)
            except OSError as error:
                raise self.failed("bad_gateway", "the connection to the server broke") from error
            self.heard = self.heard or bool(self._unread)
            self.moved(0, len(self._unread))
        lines = _LINES.match(self._unread) if self._has_trailers else None
        end = len(self._unread) if lines is None else max(lines.end(), _LINES_BYTES)
        data, self._unread = self._unread[:end], self._unread[end:]
        return data

    def _changed(self, event: h11.Response | h11.InformationalResponse) -> h11.Event:
        """Return the head of an answer as the client may see it; the server's own words for its status are left out."""
        headers = list(self.exchange.answered(end_to_end(event.headers.raw_items())))
        if isinstance(event, h11.Response) and not self.sent:
            headers.append((b"Connection", b"close"))  # where the rest of the request ends may never be known
        return type(event)(status_code=event.status_code, headers=headers, reason=phrase(event.status_code))

    async def _switch(self, event: h11.InformationalResponse) -> None:
        if dict(event.headers).get(b"upgrade", b"").lower() != b"websocket":
            raise self.failed("bad_gateway", "the server switched to a protocol that was not asked for")
        headers = [*self.exchange.answered(end_to_end(event.headers.raw_items())), *_UPGRADE]
        await self._inbound.send(h11.InformationalResponse(status_code=101, headers=headers, reason=phrase(101)))

    async def _end(self, event: h11.EndOfMessage) -> None:
        if rest := self.exchange.flush():
            await self._inbound.send(h11.Data(data=rest))
        tail = trailers(event.headers.raw_items()) if self._inbound.speaks_http11 else ()
        await self._inbound.send(h11.EndOfMessage(headers=list(self.exchange.answered(tail))))


def phrase(status: int) -> str:
    """Return the usual words for a status, "" if it has none."""
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
