"""Messages to and from a server over HTTP, through the door of the thread's sandbox.

Each connection is judged, resolved, limited and recorded as those of the thread's tool code are. A credential is a
placeholder here too; the door puts the secret in.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpcore2
import httpx2
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.streamable_http import streamable_http_client

from gateway.mcp_servers.traffic import MESSAGE_LIMIT_BYTES, Incoming, SentTooMuch, Texts, Traffic
from gateway.network.http_request import FIELDS_LIMIT, HINTS_LIMIT
from gateway.support.printable_text import printable

Connect = Callable[[], socket.socket]
"""Returns a connection to the door that the call under way may use."""
_HEAD_LIMIT_BYTES = 64 * 1024
# Decoded at once: what arrived together may be hundreds of pieces, or of header fields.
_PIECE_BYTES = 4096
# Of the heads of one answer, or of its trailers: header fields, and two more for the answer and each 1xx before it.
_LINES_LIMIT = FIELDS_LIMIT + 2 * (HINTS_LIMIT + 1)
_TOO_MANY_LINES = f"its answer has more than {_LINES_LIMIT} lines of header fields and informational heads (1xx)"
_SAID_LIMIT_BYTES = 8 * 1024
_SAID_CHARS = 500
_CONNECTIONS = 8
# Between two pieces of an answer; a call has a limit of its own.
_SILENCE_S = 300.0
_TIMEOUT = httpx2.Timeout(30.0, read=_SILENCE_S)


@asynccontextmanager
async def door_transport(
    url: str, headers: Mapping[str, str], connect: Connect, trust: ssl.SSLContext, traffic: Traffic
) -> AsyncGenerator[TransportStreams]:
    """Carry the messages of a session in this block."""
    transport = _DoorTransport(connect, trust, traffic)
    sent = {**headers, "accept-encoding": "identity"}
    incoming, read = anyio.create_memory_object_stream[Incoming](0)
    async with (
        httpx2.AsyncClient(transport=transport, headers=sent, timeout=_TIMEOUT, trust_env=False) as client,
        streamable_http_client(
            url, http_client=client, terminate_on_close=False, max_sse_event_size=MESSAGE_LIMIT_BYTES
        ) as (answers, write),
        incoming,
        read,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(traffic.pass_on, _each(answers), incoming)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()


async def _each(answers: ReadStream[Incoming]) -> AsyncIterator[Incoming]:
    async for answer in answers:
        yield answer


class _DoorTransport(httpx2.AsyncBaseTransport):
    """Sends requests through the door, and bounds what comes back."""

    def __init__(self, connect: Connect, trust: ssl.SSLContext, traffic: Traffic) -> None:
        self._traffic = traffic
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust,
            max_connections=_CONNECTIONS,
            max_keepalive_connections=0,  # each connection is that of one call, and on record as such
            network_backend=_DoorBackend(connect),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405)  # a stream of messages that were not requested: none of them would be used
        url = request.url
        asked = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(asked)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            self._traffic.problem = str(error) or type(error).__name__
            raise httpx2.ConnectError(self._traffic.problem) from error
        stream = _Counted(answer, self._traffic)
        if problem := _unusable(answer):
            await stream.aclose()
            self._traffic.problem = problem
            raise httpx2.ReadError(problem)
        if answer.status >= 400:
            stream.keep_beginning(answer.status)
            if not _content_type(answer).startswith(b"application/json"):  # the library reads no other error
                await stream.aclose()
                return httpx2.Response(answer.status, headers=_headers(answer), extensions=answer.extensions)
        return httpx2.Response(answer.status, headers=_headers(answer), stream=stream, extensions=answer.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


def _unusable(answer: httpcore2.Response) -> str:
    """Return what is wrong with the head of an answer, "" for nothing."""
    if len(answer.headers) > FIELDS_LIMIT:
        return f"its answer has more than {FIELDS_LIMIT} header fields"
    if any(name.lower() == b"content-encoding" and value != b"identity" for name, value in answer.headers):
        return "it compressed its answer, unasked"
    return ""


def _headers(answer: httpcore2.Response) -> list[tuple[bytes, bytes]]:
    """Return the header fields of an answer, without an encoding: its texts are counted as UTF-8, and read as that."""
    return [
        (name, value.partition(b";")[0] if name.lower() == b"content-type" else value) for name, value in answer.headers
    ]


def _content_type(answer: httpcore2.Response) -> bytes:
    return next((value.lower() for name, value in answer.headers if name.lower() == b"content-type"), b"")


class _Counted(httpx2.AsyncByteStream):
    """The body of an answer, counted. That of an error says why, if it is JSON of the door or text."""

    def __init__(self, answer: httpcore2.Response, traffic: Traffic) -> None:
        self._answer = answer
        self._traffic = traffic
        self._texts = Texts()
        self._status = 0
        self._beginning = b""

    def keep_beginning(self, status: int) -> None:
        """Have `problem` say what the body does, once this is closed."""
        self._status = status
        self._traffic.problem = f"HTTP {status}"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces():
                yield piece
        except SentTooMuch as error:
            self._traffic.problem, self._status = str(error), 0
            raise httpx2.ReadError(str(error)) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise httpx2.ReadError(str(error) or type(error).__name__) from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        connection = self._answer.extensions.get("network_stream")
        async for piece in self._answer.aiter_stream():
            if isinstance(connection, _DoorStream):
                connection.used()
            self._traffic.received(piece, self._texts)
            if self._status and (left := _SAID_LIMIT_BYTES - len(self._beginning)) > 0:
                self._beginning += piece[:left]
            yield piece

    async def aclose(self) -> None:
        if self._status and not self._beginning:  # an error whose reason was not read
            with suppress(Exception):
                async with asyncio.timeout(1):
                    async for _ in self._pieces():
                        if len(self._beginning) >= _SAID_LIMIT_BYTES:
                            break
        await self._answer.aclose()
        if self._status and self._beginning:
            self._traffic.problem = f"HTTP {self._status}: {_said(self._beginning)}"
            self._status = 0


def _said(body: bytes) -> str:
    """Return what an error says: the reason of the door's refusal, or the text."""
    with suppress(ValueError, RecursionError):
        said = json.loads(body)
        if isinstance(said, dict) and isinstance(said.get("reason"), str):
            rule, advice = said.get("rule"), said.get("how_to_allow")
            text = said["reason"] + (f" (rule {rule})" if rule else "") + (f"; {advice}" if advice else "")
            return printable(text, _SAID_CHARS)
    return printable(body.decode(errors="replace"), _SAID_CHARS).replace("\n", " ")


class _DoorBackend(httpcore2.AsyncNetworkBackend):
    """Connects through the door, as a client of a proxy."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        del local_address, socket_options
        try:
            connection = self._connect()
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        try:
            async with asyncio.timeout(timeout):
                await _tunnel(connection, f"[{host}]" if ":" in host else host, port)
        except (OSError, TimeoutError) as error:
            connection.close()
            raise httpcore2.ConnectError(str(error) or "the connection could not be made in time") from error
        except BaseException:
            connection.close()
            raise
        return _DoorStream(connection)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _tunnel(connection: socket.socket, host: str, port: int) -> None:
    """Ask the door for a tunnel. Raises ConnectionError with the door's reason."""
    loop, head = asyncio.get_running_loop(), b""
    await loop.sock_sendall(connection, f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    while b"\r\n\r\n" not in head and len(head) < _HEAD_LIMIT_BYTES:
        if not (piece := await loop.sock_recv(connection, _HEAD_LIMIT_BYTES)):
            raise ConnectionError("the network door closed the connection")
        head += piece
    line, body = head.partition(b"\r\n")[0], head.partition(b"\r\n\r\n")[2]
    if b" 200 " in line + b" ":
        if body:
            raise ConnectionError(f"{host} is not an HTTP server: it sent data before the request")
        return
    while len(body) < _SAID_LIMIT_BYTES and (piece := await loop.sock_recv(connection, _SAID_LIMIT_BYTES)):
        body += piece
    raise ConnectionError(_said(body))


class _DoorStream(httpcore2.AsyncNetworkStream):
    """A tunnel, plain until `start_tls`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lines = 0

    def used(self) -> None:
        """Count lines anew: what was read was a head, or a piece of a body."""
        self._lines = 0

    async def _opened(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._connection, **options)
        return self._streams

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                await self._opened(ssl=ssl_context, server_hostname=server_hostname)
        except (OSError, TimeoutError) as error:
            await self.aclose()
            why = getattr(error, "verify_message", "") or str(error) or "it took too long"
            raise httpcore2.ConnectError(f"the TLS handshake with {server_hostname} failed: {why}") from error
        return self

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._lines > _LINES_LIMIT:
            raise httpcore2.RemoteProtocolError(_TOO_MANY_LINES)
        await asyncio.sleep(0)  # much may have arrived at once: others have their turn between its pieces
        try:
            reader, _ = await self._opened()
            async with asyncio.timeout(timeout):
                data = await reader.read(min(max_bytes, _PIECE_BYTES))
        except TimeoutError as error:
            raise httpcore2.ReadTimeout("the server is silent") from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error
        self._lines += data.count(b"\n")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            _, writer = await self._opened()
            async with asyncio.timeout(timeout):
                writer.write(buffer)
                await writer.drain()
        except TimeoutError as error:
            raise httpcore2.WriteTimeout("the server does not read") from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        if self._streams is None:
            self._connection.close()
        else:
            self._streams[1].transport.abort()

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and self._streams is not None:
            return self._streams[1].get_extra_info("ssl_object")
        if info == "is_readable":
            return self._streams is not None and self._streams[0].at_eof()
        return None
