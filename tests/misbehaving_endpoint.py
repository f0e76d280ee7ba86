"""An endpoint, or a proxy before one, that misbehaves as it is told, on each layer: TCP, TLS, HTTP, events and JSON.

It plays one fault for each connection. `Wire.genuine` asks the scripted model server behind it, so that a fault can do
to a real answer what proxies do: cut it, slow it down, or change it. The faults are in tests.endpoint_faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import trustme

from agent.errors import ModelError
from agent.messages import ToolCall

KEY = "sk-Fault-0123456789"
TEAM = "team-9876543210-header"
CODE = "code/5555555555=query"
SECRETS = f"with {KEY}, {TEAM} and {CODE}"
"""What the request carried and no one may read: endpoints and proxies repeat it."""

ANSWER = "The answer is forty-two."

Certificate = Literal["", "good", "expired", "other name", "unknown"]


@dataclass
class Wire:
    """One connection of the client to the endpoint."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: str
    head: bytes = b""
    body: bytes = b""

    async def asked(self) -> None:
        """Read the request."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        lines = self.head.decode("latin-1").lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        self.body = await self.reader.readexactly(length)

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    async def silence(self) -> None:
        """Wait until the client hangs up."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def reset(self) -> None:
        """End the connection as a crash does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def genuine(self) -> bytes:
        """Return what the scripted server answers to this request."""
        await self.asked()
        there = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(there.hostname, there.port)
        rest = self.head.partition(b"\r\n")[2]  # in the first line a proxy has the whole address, and there is a query
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + rest + self.body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head.lower():
            answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            answer = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()
        return head + answer


Play = Callable[[Wire], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and what comes of it: an error that says so and names a setting, or an answer all the same.

    `in_proxy`: the fault is that of a forward proxy. `within` are settings of the connection that the fault is about.
    """

    name: str
    play: Play | None
    error: type[ModelError] | None = None
    says: tuple[str, ...] = ()
    setting: str = ""
    stream: bool = True
    scheme: Literal["http", "https"] = "http"
    host: str = "127.0.0.1"
    certificate: Certificate = ""
    in_proxy: bool = False
    within: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ANSWER
    calls: tuple[ToolCall, ...] = ()


@contextlib.asynccontextmanager
async def misbehaving(fault: Fault, upstream: str) -> AsyncIterator[int]:
    """Play a fault on a free port."""
    connections: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The server's own task must not be cancelled: it would be reported as a fault of the test.
        task = asyncio.create_task(_played(fault, Wire(reader, writer, upstream)))
        connections.add(task)
        await asyncio.wait({task})

    if fault.play is None:
        yield _closed_port()
        return
    tls = _server_tls(fault.certificate) if fault.certificate else None
    server = await asyncio.start_server(play, "127.0.0.1", 0, ssl=tls, limit=2**20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # its connections are closed in the tasks of the server


async def _played(fault: Fault, wire: Wire) -> None:
    assert fault.play is not None
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await fault.play(wire)
    finally:
        wire.writer.close()


def _closed_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


@functools.cache
def authority(which: str) -> trustme.CA:
    """Return a certificate authority; the tests trust the one called "trusted"."""
    return trustme.CA(organization_name=which)


def _server_tls(certificate: Certificate) -> ssl.SSLContext:
    host = "elsewhere.example" if certificate == "other name" else "127.0.0.1"
    year = 2020 if certificate == "expired" else dt.datetime.now(tz=dt.UTC).year + 1
    until = dt.datetime(year, 1, 2, tzinfo=dt.UTC)
    issuer = authority("unknown" if certificate == "unknown" else "trusted")
    issued = issuer.issue_cert(host, not_before=dt.datetime(2019, 1, 1, tzinfo=dt.UTC), not_after=until)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    return context


# --- what plays are made of ---


def http(body: Any, status: int | str = 200, **headers: str) -> bytes:
    """Return a whole answer of HTTP, which ends with the connection."""
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    sent = {"content-type": "application/json", "content-length": str(len(data)), "connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    line = f"HTTP/1.1 {status} -" if isinstance(status, int) else f"HTTP/1.1 {status}"
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in sent.items()), "", ""]).encode() + data


def answering(body: Any, status: int | str = 200, **headers: str) -> Play:
    """Answer each request so."""

    async def play(wire: Wire) -> None:
        await wire.asked()
        await wire.send(http(body, status, **headers))

    return play


def events(*said: Any, end: str = "\n\n") -> str:
    """Return a stream of events, of JSON or of texts as they are."""
    return "".join((one if isinstance(one, str) else f"data: {json.dumps(one)}") + end for one in said)


def streaming(*said: Any, end: str = "\n\n") -> Play:
    """Answer each request with a stream of events."""
    return answering(events(*said, end=end), content_type="text/event-stream")


def chunk(delta: Any, finish_reason: Any = None, **besides: Any) -> dict[str, Any]:
    """Return one piece of a streamed answer."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **besides}


def completion(message: Any, finish_reason: Any = "stop", **besides: Any) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], **besides}


def chunked(text: str) -> bytes:
    return f"{len(text.encode()):x}\r\n{text}\r\n".encode()


def sending(*pieces: bytes, then: Callable[[Wire], object] | None = None) -> Play:
    """Send these bytes, then do something, or hang up."""

    async def play(wire: Wire) -> None:
        await wire.asked()
        await wire.send(*pieces)
        if then is not None:
            then(wire)

    return play


def silent(*pieces: bytes) -> Play:
    async def play(wire: Wire) -> None:
        await wire.asked()
        await wire.send(*pieces)
        await wire.silence()

    return play


def endless(start: bytes, piece: bytes, pause_s: float = 0.0) -> Play:
    async def play(wire: Wire) -> None:
        await wire.asked()
        await wire.send(start)
        while not wire.writer.is_closing():
            await wire.send(piece, pause_s=pause_s)

    return play


def genuine(change: Callable[[bytes], bytes]) -> Play:
    """Send a real answer, changed."""

    async def play(wire: Wire) -> None:
        await wire.send(change(await wire.genuine()))

    return play


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
STREAM = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SAID = events(chunk({"content": ANSWER[:10]}), chunk({"content": ANSWER[10:]}))
WHOLE = SAID + events(chunk({}, "stop"), "data: [DONE]")
SLOW = {"timeout_s": 0.4, "idle_timeout_s": 5.0}
SILENT = {"timeout_s": 5.0, "idle_timeout_s": 0.3}
