"""The HTTP client for model endpoints, which are untrusted: it bounds answers and redirects.

Limits count decoded bytes and apply as bytes arrive, before anything buffers them:

    ANSWER_LIMIT_BYTES   a whole answer
    LINE_LIMIT_BYTES     one line of it, which is one event of a stream, or a whole answer that is not streamed
    ERROR_LIMIT_BYTES    the body of an HTTP error; the rest is not read

Requests ask for no compression. gzip and deflate are decoded anyway, in small pieces; other encodings are refused.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from agent.models.endpoint_errors import UnusableAnswer

ANSWER_LIMIT_BYTES = 128 * 1024 * 1024
LINE_LIMIT_BYTES = 8 * 1024 * 1024
ERROR_LIMIT_BYTES = 64 * 1024

_PIECE_BYTES = 64 * 1024
_REDIRECT_LIMIT = 3
_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


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
            if not followed or redirects > _REDIRECT_LIMIT:
                raise RefusedRedirect(_origin(then.url))
            response = await super().send(then, stream=True, **options)
        try:
            _bound(response)
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"  # netloc is host and port alone


def _bound(response: httpx2.Response) -> None:
    """Replace the response's stream by one that decodes it within bounds."""
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding not in _ENCODINGS | {"identity", ""}:
        raise UnusableAnswer(f"an answer with the content-encoding {encoding[:40]!r}, which was not asked for")
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous client has asynchronous streams")
    decoder = _Inflater() if encoding in _ENCODINGS else None
    if response.is_error:
        response.stream = _Beginning(response.stream, decoder)
    else:
        response.stream = _Bounded(response.stream, decoder)


class _Inflater:
    """Decodes gzip or zlib in small pieces."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            try:
                piece = self._inner.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise UnusableAnswer(f"an answer that cannot be decompressed ({error})") from error
            data = self._inner.unconsumed_tail
            if piece:
                yield piece


class _Decoded(httpx2.AsyncByteStream):
    """A response's decoded bytes. Iterating again continues where the last iteration ended."""

    def __init__(self, inner: httpx2.AsyncByteStream, decoder: _Inflater | None) -> None:
        self._inner = inner
        self._decoder = decoder

    async def pieces(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            if self._decoder is None:
                yield data
                continue
            for piece in self._decoder.pieces(data):
                yield piece
                await asyncio.sleep(0)  # one packet may have a thousand pieces: let other tasks run

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(_Decoded):
    def __init__(self, inner: httpx2.AsyncByteStream, decoder: _Inflater | None) -> None:
        super().__init__(inner, decoder)
        self._total_bytes = 0
        self._line_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self.pieces():
            self._total_bytes += len(piece)
            end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
            self._line_bytes = len(piece) - end - 1 if end >= 0 else self._line_bytes + len(piece)
            if self._line_bytes > LINE_LIMIT_BYTES:
                raise UnusableAnswer(f"a line of more than {LINE_LIMIT_BYTES // 2**20} MiB")
            if self._total_bytes > ANSWER_LIMIT_BYTES:
                raise UnusableAnswer(f"an answer of more than {ANSWER_LIMIT_BYTES // 2**20} MiB")
            yield piece


class _Beginning(_Decoded):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        left_bytes = ERROR_LIMIT_BYTES
        async for piece in self.pieces():
            yield piece[:left_bytes]
            left_bytes -= len(piece)
            if left_bytes <= 0:
                return
