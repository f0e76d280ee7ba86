"""One end of an HTTP/2 connection: h2 parses and writes frames, data waits while the other side has no window."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PriorityUpdated,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from gateway.network.http_client import Streams

Fields = Sequence[tuple[bytes, bytes]]

# Windows: how many bytes of one stream, and of the connection, may be here that the other side has not taken yet. A
# request that waits, for an approval say, gets less, so that all of these leave most of the connection's window free.
_STREAM_WINDOW_BYTES = 256 * 1024
_WAITING_WINDOW_BYTES = 4 * 1024
_WINDOW_BYTES = 1024 * 1024
_LIMIT_STREAMS = 100
_LIMIT_HEADER_BYTES = 64 * 1024
_FRAME_BYTES = 16 * 1024
# Decoded at once: heads cost by the field, and a thousand fields may be a thousand bytes.
_PIECE_BYTES = 4096
_FIELD_BYTES = 32
# What h2 writes heads with: it searches all of the table for each field, so the other side does not choose its size.
_LIMIT_TABLE_BYTES = 4096
_GOAWAY = 7
# Frames, of all streams, that the other side has not taken: each costs memory that no window counts.
_LIMIT_FRAMES = 8192
# The same for heads and trailers, and for requests' heads until their streams are over. They are counted as
# SETTINGS_MAX_HEADER_LIST_SIZE does: one byte may stand for a whole field.
_LIMIT_UNTAKEN_HEADER_BYTES = 2 * 1024 * 1024


class EndGone(Exception):
    """The connection is closed, or what came was not HTTP/2."""


class StreamGone(Exception):
    """One stream ended early, by its other side."""


class StreamUnserved(StreamGone):
    """The server has done nothing about a request, which may be made again on another connection."""


@dataclass
class Arrivals:
    """What arrived on one stream, in order, None after a reset, StreamReset if the server does not serve it.

    `untaken_bytes` count against the windows, `untaken_header_bytes` are those of heads and trailers; a request's head
    is among them to the end.
    `announced_bytes` are those of Content-Length that are still to come, None without one.
    """

    queue: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)
    untaken_bytes: int = 0
    untaken_header_bytes: int = 0
    ended: bool = False
    announced_bytes: int | None = None

    async def next(self) -> Event:
        """Return what arrived next. Raises StreamGone, also if the body is too short (RFC 9113, 8.1.1)."""
        event = await self.queue.get()
        if event is None:
            raise StreamGone
        if isinstance(event, StreamReset):
            raise StreamUnserved
        self.untaken_header_bytes -= header_bytes(getattr(event, "headers", ()))
        if self.announced_bytes is not None and isinstance(event, DataReceived):
            self.announced_bytes -= len(event.data)
        elif self.announced_bytes and isinstance(event, TrailersReceived | StreamEnded):
            raise StreamGone
        return event


def header_bytes(fields: Fields) -> int:
    """Return the size of a head or of trailers as HTTP/2 counts it (RFC 9113, 6.5.2)."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)


class End:
    """Wraps streams on which HTTP/2 was negotiated."""

    def __init__(self, streams: Streams, *, client_side: bool) -> None:
        self.reader, self.writer = streams
        self.http = H2Connection(H2Configuration(client_side=client_side, header_encoding=None))
        # hpack's Huffman coding takes half a second for a value of 60 KB.
        self.http.encoder.encode = partial(self.http.encoder.encode, huffman=False)  # type: ignore[method-assign]
        self.arrivals: dict[int, Arrivals] = {}
        self.leaving = False
        self.closes_with: Callable[[int], int] = lambda _stream: 0
        """Asked when a stream's end is sent: if the connection closes with it, the number of the last stream begun."""
        self.closed = False
        """Whether it has closed so: what arrives then is dropped."""
        self._client_side = client_side
        self._changed = asyncio.Event()
        self._unread = bytearray()

    async def start(self) -> None:
        """Send the preface and the settings."""
        self.http.initiate_connection()
        settings: dict[SettingCodes | int, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES if self._client_side else _WAITING_WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: _LIMIT_HEADER_BYTES,
        }
        if self._client_side:
            settings[SettingCodes.ENABLE_PUSH] = 0
        else:
            settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _LIMIT_STREAMS
        self.http.update_settings(settings)
        self.http.increment_flow_control_window(_WINDOW_BYTES - self.http.inbound_flow_control_window)
        await self.flush()

    async def read(self, first: bytes = b"") -> list[Event]:
        """Wait for frames. Raises EndGone."""
        try:
            data = first or await self.reader.read(_FRAME_BYTES)
            if not data:
                raise EndGone("closed")
            events: list[Event] = []
            for start in range(0, len(data), _PIECE_BYTES):
                await asyncio.sleep(0)  # others have their turn: it may be hundreds of frames
                if self.closed:
                    return []
                events += self.http.receive_data(self._without_goaway(data[start : start + _PIECE_BYTES]))
                self._limit_table()
        except (H2Error, OSError) as error:
            self.write()
            raise EndGone("not HTTP/2") from error
        await self.flush()
        self._changed.set()
        self._changed = asyncio.Event()
        return events

    async def send_headers(self, stream: int, fields: Fields, *, end: bool = False) -> None:
        """Send a head or trailers. Raises StreamGone and EndGone, as all that send."""
        self._do(self.http.send_headers, stream, list(fields), end_stream=end)
        if end:
            self._close_with(stream)
        await self.flush()

    async def send_trailers(self, stream: int, fields: Fields) -> None:
        """End a stream, with trailers if there are any."""
        if fields:
            await self.send_headers(stream, fields, end=True)
        else:
            await self.send_data(stream, b"", end=True)

    async def send_data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send as the other side's windows permit."""
        while data:
            room = min(self._window(stream), self.http.max_outbound_frame_size)
            if room <= 0:
                await self._changed.wait()
                continue
            self._do(self.http.send_data, stream, data[:room])
            await self.flush()
            data = data[room:]
        if end:
            self._do(self.http.end_stream, stream)
            self._close_with(stream)
            await self.flush()

    def arrived(self, event: Event) -> None:
        """Put an event where its stream is served; data of a stream that is over is dropped."""
        if isinstance(event, WindowUpdated | PriorityUpdated):
            return  # h2 has applied it; in a long answer they would fill the queue
        stream = getattr(event, "stream_id", None) or 0
        arrivals = self.arrivals.get(stream)
        if arrivals is None:
            if isinstance(event, DataReceived):
                self._acknowledge(stream, event.flow_controlled_length)
                self.write()
            return
        if isinstance(event, DataReceived):
            if not event.flow_controlled_length:
                return  # without a byte, and in no window
            arrivals.untaken_bytes += event.flow_controlled_length
        arrivals.untaken_header_bytes += header_bytes(getattr(event, "headers", ()))
        arrivals.ended = arrivals.ended or isinstance(event, StreamEnded | StreamReset)
        arrivals.queue.put_nowait(None if isinstance(event, StreamReset) else event)

    def check_untaken(self) -> None:
        """Raise EndGone if the other side sent much more frames, or bytes of headers, than were taken."""
        if sum(arrivals.queue.qsize() for arrivals in self.arrivals.values()) > _LIMIT_FRAMES:
            raise EndGone("too many frames wait")
        if not self.has_room(0):
            raise EndGone("too large headers wait")

    def has_room(self, size: int) -> bool:
        """Return whether so many more bytes of headers may wait."""
        waiting = sum(arrivals.untaken_header_bytes for arrivals in self.arrivals.values())
        return waiting + size <= _LIMIT_UNTAKEN_HEADER_BYTES

    async def taken(self, stream: int, event: DataReceived) -> None:
        """Let the other side send as much again."""
        self.arrivals[stream].untaken_bytes -= event.flow_controlled_length
        self._acknowledge(stream, event.flow_controlled_length)
        await self.flush()

    async def widen(self, stream: int) -> None:
        """Give a stream its full window, once its request no longer waits."""
        with suppress(H2Error):  # it is over
            self.http.increment_flow_control_window(_STREAM_WINDOW_BYTES - _WAITING_WINDOW_BYTES, stream)
        await self.flush()

    def forget(self, stream: int) -> None:
        """Drop what arrived on a stream, which then counts against no window."""
        arrivals = self.arrivals.pop(stream, None)
        if arrivals is not None and arrivals.untaken_bytes:
            self._acknowledge(stream, arrivals.untaken_bytes)
            self.write()

    async def open_stream(self, fields: Fields) -> int:
        """Send a request's head, once there may be one more, and return its stream's number. Raises StreamUnserved."""
        while not self.leaving and self._is_full():
            await self._changed.wait()
        if self.leaving:
            raise StreamUnserved
        stream = self.http.get_next_available_stream_id()
        self.arrivals[stream] = Arrivals()
        await self.send_headers(stream, fields)
        return stream

    def reset(self, stream: int, code: ErrorCodes | int) -> None:
        """End a stream early, if it has not ended."""
        try:
            self.http.reset_stream(stream, code)
        except H2Error:
            return  # it has
        self.write()

    def write(self) -> None:
        if (data := self.http.data_to_send()) and not self.writer.is_closing():
            self.writer.write(data)

    async def flush(self) -> None:
        self.write()
        try:
            await self.writer.drain()
        except OSError as error:
            raise EndGone("closed") from error

    def _is_full(self) -> bool:
        return self.http.open_outbound_streams >= self.http.remote_settings.max_concurrent_streams

    def _left(self, last: int) -> None:
        """Note that the server serves no more streams, of those that are open the ones up to `last`."""
        self.leaving = True
        for stream, arrivals in self.arrivals.items():
            if stream > last:
                arrivals.queue.put_nowait(StreamReset(stream_id=stream))

    def _limit_table(self) -> None:
        encoder = self.http.encoder
        encoder.header_table_size = min(encoder.header_table_size, _LIMIT_TABLE_BYTES)
        # The next head names the least size since the last one, and the present size (RFC 7541, 4.2).
        sizes = [size for size in encoder.table_size_changes if size <= _LIMIT_TABLE_BYTES]
        encoder.table_size_changes = sizes if len(sizes) <= 2 else [min(sizes), sizes[-1]]
        encoder.header_table.resized = bool(sizes)

    def _window(self, stream: int) -> int:
        try:
            return self.http.local_flow_control_window(stream)
        except H2Error as error:
            raise StreamGone from error

    def _acknowledge(self, stream: int, count: int) -> None:
        with suppress(H2Error):  # the connection is closed
            self.http.acknowledge_received_data(count, stream)

    def _close_with(self, stream: int) -> None:
        # Sent in one piece with the stream's end: a client that learns of the close later may have begun a request, and
        # not every client makes it again on another connection.
        if last := self.closes_with(stream):
            self.closed = True
            with suppress(H2Error):
                self.http.close_connection(last_stream_id=last)

    @staticmethod
    def _do(send: Callable[..., object], *args: object, **more: object) -> None:
        try:
            send(*args, **more)
        except H2Error as error:
            raise StreamGone from error

    def _without_goaway(self, data: bytes) -> bytes:
        """Return whole frames but GOAWAY, which h2 takes for the end: open streams go on (RFC 9113, 6.8)."""
        if not self._client_side:
            return data
        self._unread += data
        at = kept = 0
        passed = bytearray()
        while len(self._unread) - at >= 9:
            length = int.from_bytes(self._unread[at : at + 3], "big")
            if length > _FRAME_BYTES:
                at = len(self._unread)  # h2 refuses it
                break
            if len(self._unread) - at < 9 + length:
                break
            if self._unread[at + 3] == _GOAWAY:
                self._left(int.from_bytes(self._unread[at + 9 : at + 13], "big") & 0x7FFF_FFFF)
                passed += self._unread[kept:at]
                kept = at + 9 + length
            at += 9 + length
        passed += self._unread[kept:at]
        del self._unread[:at]
        return bytes(passed)
