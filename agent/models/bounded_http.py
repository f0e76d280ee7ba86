"""The HTTP client for model endpoints, which are untrusted: it bounds answers and redirects.

Limits count decoded bytes and apply as bytes arrive, before anything buffers them:

    ANSWER_LIMIT_BYTES   a whole answer
    LINE_LIMIT_BYTES     one line of it, which is one event of a stream, or a whole answer that is not streamed
    ERROR_LIMIT_BYTES    the body of an HTTP error; the rest is not read

Requests ask for no compression. gzip and deflate are decoded anyway, in small pieces; other encodings are refused.
"""

import asyncio
import codecs
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from agent.models.endpoint_errors import UnusableAnswer

ANSWER_LIMIT_BYTES = 128 * 1024 * 1024
LINE_LIMIT_BYTES = 8 * 1024 * 1024
ERROR_LIMIT_BYTES = 64 * 1024

_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_LINE_OVERHEAD_BYTES = 64  # memory of a line besides its text


class RefusedRedirect(Exception):
    """The endpoint redirects to another origin, or endlessly. str() is that origin."""


class BoundedClient(httpx2.AsyncClient):
    """An HTTP client with bounded responses, which follows redirects only within the origin of the request."""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request. Raises RefusedRedirect; reading the response may raise UnusableAnswer."""
        request.headers["accept-encoding"] = "identity"
        options["follow_redirects"] = False
        response = await super().send(request, stream=True, **options)
        redirects = 0
        while (then := response.next_request) is not None:
            await response.aclose()
            redirects += 1
            followed = then.method == request.method and _origin(then.url) == _origin(request.url)
            if not followed or redirects > 3:
                raise RefusedRedirect(_origin(then.url))
            response = await super().send(then, stream=True, **options)
        try:
            encoding = response.headers.pop("content-encoding", "identity").strip().lower()
            if encoding not in _ENCODINGS | {"identity", ""}:
                raise UnusableAnswer(f"an answer with the content-encoding {encoding[:40]!r}, which was not asked for")
            inner = cast(httpx2.AsyncByteStream, response.stream)  # as every stream of an asynchronous client
            response.stream = _Bounded(inner, inflated=encoding in _ENCODINGS, is_error=response.is_error)
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"  # netloc is host and port alone


class _Bounded(httpx2.AsyncByteStream):
    """A response's decoded bytes within bounds. Iterating again continues where the last iteration ended."""

    def __init__(self, inner: httpx2.AsyncByteStream, *, inflated: bool, is_error: bool) -> None:
        self._inner = inner
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if inflated else None
        self._is_error = is_error
        self._total_bytes = self._line_bytes = 0

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            if self._decoder is None:
                yield data
                continue
            packed = data
            while packed and not self._decoder.eof:
                try:
                    piece = self._decoder.decompress(packed, 64 * 1024)
                except zlib.error as error:
                    raise UnusableAnswer(f"an answer that cannot be decompressed ({error})") from error
                packed = self._decoder.unconsumed_tail
                if piece:
                    yield piece
                await asyncio.sleep(0)  # one packet may have a thousand pieces: let other tasks run

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces():
            self._total_bytes += len(piece)
            if self._is_error and self._total_bytes >= ERROR_LIMIT_BYTES:
                yield piece[: max(0, len(piece) - (self._total_bytes - ERROR_LIMIT_BYTES))]
                return
            end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
            self._line_bytes = len(piece) - end - 1 if end >= 0 else self._line_bytes + len(piece)
            if self._line_bytes > LINE_LIMIT_BYTES:
                raise UnusableAnswer(f"a line of more than {LINE_LIMIT_BYTES // 2**20} MiB")
            if self._total_bytes > ANSWER_LIMIT_BYTES:
                raise UnusableAnswer(f"an answer of more than {ANSWER_LIMIT_BYTES // 2**20} MiB")
            yield piece


@dataclass(frozen=True)
class ServerEvent:
    """One event. `is_error`: its type is error, or it has llama.cpp's field `error` instead of `data`."""

    data: str
    is_error: bool = False


class EventReader:
    """Splits bytes into events. Lines end with CR, LF or both; comments and the fields id and retry are skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = self._is_error = False
        self._data: list[bytes] = []
        self._text: list[bytes] = []
        self._data_bytes = self._text_bytes = 0

    @property
    def text(self) -> str:
        return b"\n".join(self._text).decode("utf-8", "replace").strip()

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Add bytes; yield complete events. Raises UnusableAnswer for one that is too long."""
        self._buffer += piece
        if b"\n" not in piece and b"\r" not in piece:
            return
        pending = b"\r" if self._buffer.endswith(b"\r") else b""  # its LF may come next
        whole = bytes(self._buffer[: len(self._buffer) - len(pending)])
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = bytearray(rest + pending)
        for line in lines:
            yield from self._line(line)

    def finish(self) -> Iterator[ServerEvent]:
        """Yield the last event: many endpoints omit the final empty line."""
        for line in (bytes(self._buffer.rstrip(b"\r")), b""):
            yield from self._line(line)
        self._buffer.clear()

    def _line(self, line: bytes) -> Iterator[ServerEvent]:
        if not self._begun:
            line = line.removeprefix(codecs.BOM_UTF8)
            self._begun = True
        if not line:
            if self._data:
                yield ServerEvent(b"\n".join(self._data).decode("utf-8", "replace"), self._is_error)
            self._data, self._data_bytes, self._is_error = [], 0, False
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name in (b"data", b"error"):
            self._data_bytes = _within(self._data_bytes + len(value) + _LINE_OVERHEAD_BYTES)
            self._data.append(value)
            self._is_error = self._is_error or name == b"error"
        elif name == b"event":
            self._is_error = value == b"error"
        elif name and name not in (b"id", b"retry"):
            self._text_bytes = _within(self._text_bytes + len(line) + _LINE_OVERHEAD_BYTES)
            self._text.append(line)


def _within(size_bytes: int) -> int:
    if size_bytes > LINE_LIMIT_BYTES:
        raise UnusableAnswer(f"an event or a document of more than {LINE_LIMIT_BYTES // 2**20} MiB")
    return size_bytes
