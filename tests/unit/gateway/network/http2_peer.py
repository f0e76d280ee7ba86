"""The ends of HTTP/2 connections in tests: a client, and a server that does by path what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from gateway.network.http_client import Streams


@dataclass
class Message:
    """What one side sent on one stream."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    reset: int | None = None
    served: bool = False
    headed: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Peer:
    """A client or a server: keeps what it gets; a server's `serve` is called at each head and at each end."""

    def __init__(self, streams: Streams, *, client: bool, serve: Callable[[Peer, int], Any] | None = None) -> None:
        self.reader, self.writer = streams
        self.http = H2Connection(
            H2Configuration(client_side=client, header_encoding=None, validate_outbound_headers=False)
        )
        self.authority = b"good.example"
        self.got: dict[int, Message] = defaultdict(Message)
        self.closed = asyncio.Event()
        self.paused = asyncio.Event()
        self.paused.set()
        self._serve = serve
        self._window = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.http.initiate_connection()
        self.write()

    def write(self) -> None:
        self.writer.write(self.http.data_to_send())

    def ask(self, path: bytes = b"/", *more: tuple[bytes, bytes], end: bool = True, **pseudo: bytes) -> int:
        stream = self.http.get_next_available_stream_id()
        named = {"method": b"GET", "scheme": b"https", "authority": self.authority, "path": path} | pseudo
        fields = [(b":" + name.encode(), value) for name, value in named.items()]
        self.http.send_headers(stream, [*fields, *more], end_stream=end)
        self.write()
        return stream

    async def get(self, path: bytes = b"/", *more: tuple[bytes, bytes], **pseudo: bytes) -> Message:
        message = self.got[self.ask(path, *more, **pseudo)]
        await asyncio.wait_for(message.done.wait(), 20)
        return message

    async def send(self, stream: int, data: bytes, *, end: bool = True) -> None:
        while data:
            room = min(self.http.local_flow_control_window(stream), self.http.max_outbound_frame_size)
            if room <= 0:
                self._window.clear()
                await self._window.wait()
                continue
            self.http.send_data(stream, data[:room])
            data = data[room:]
            self.write()
            await self.writer.drain()
        if end:
            self.http.end_stream(stream)
            self.write()

    async def run(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self.reader.read(65536):
                for event in self.http.receive_data(data):
                    self._take(event)
                self._window.set()
                self.write()
                await self.paused.wait()
        self.closed.set()
        for message in self.got.values():
            message.done.set()

    def _take(self, event: Any) -> None:
        if isinstance(event, ConnectionTerminated) or not getattr(event, "stream_id", 0):
            return
        message = self.got[event.stream_id]
        if isinstance(event, RequestReceived | ResponseReceived):
            message.headers = dict(event.headers)
            message.headed.set()
        elif isinstance(event, DataReceived):
            message.body += event.data
            self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, TrailersReceived):
            message.trailers = dict(event.headers)
        elif isinstance(event, StreamReset):
            message.reset = int(event.error_code)
            message.done.set()
        elif isinstance(event, StreamEnded):
            message.done.set()
        if self._serve is not None and isinstance(event, RequestReceived | StreamEnded):
            task = asyncio.create_task(self._serve(self, event.stream_id))
            self._tasks.add(task)


async def behave(server: Peer, stream: int) -> None:
    """What the server does, by path."""
    message = server.got[stream]
    path = message.headers[b":path"]
    if message.served:
        return
    if path == b"/never" or not (message.done.is_set() or path == b"/early"):
        return
    message.served = True
    if path == b"/early":
        server.http.send_headers(stream, [(b":status", b"413")], end_stream=True)
    elif path == b"/reset":
        server.http.reset_stream(stream, 2)
    elif path == b"/half":
        server.http.send_headers(stream, [(b":status", b"200")])
        await server.send(stream, b"half", end=False)
        server.http.reset_stream(stream, 2)
    elif path == b"/close":
        server.writer.close()
        return
    elif path.startswith(b"/big"):
        server.http.send_headers(stream, [(b":status", b"200")])
        await server.send(stream, bytes(int(path[4:])))
    else:
        if path == b"/leaving":
            frame = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + stream.to_bytes(4, "big") + bytes(4)
            server.writer.write(frame)
        shown = {name.decode(): value.decode() for name, value in message.headers.items()}
        server.http.send_headers(stream, [(b":status", b"200"), (b"x-seen", b"yes")])
        await server.send(stream, json.dumps(shown).encode() + bytes(message.body), end=False)
        server.http.send_headers(stream, [(b"grpc-status", b"0"), *message.trailers.items()], end_stream=True)
    server.write()
