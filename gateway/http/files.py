"""Files of a thread's sandbox as plain bodies: GET and PUT /v1/threads/THREAD/content?path=PATH.

A slow reader slows the sandbox, and a slow writer costs no memory: one piece at a time is under way.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from gateway.errors import InvalidArgument
from gateway.http.calls import Calls, pieces_of, unquoted

_PATH = re.compile(r"/v1/threads/([^/]+)/content")
# What tool code wrote is never shown as a page of the gateway.
_HEADERS = {"x-content-type-options": "nosniff", "content-disposition": "attachment", "cache-control": "no-store"}


@dataclass(frozen=True)
class FileContents:
    """Serves the contents of files."""

    calls: Calls

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/v1/threads/{rest:path}/content", self._read, methods=["GET"]),
            Route("/v1/threads/{rest:path}/content", self._write, methods=["PUT"]),
        ]

    async def _read(self, request: Request) -> Response:
        thread, path = _named(request)
        offset, limit = _number(request, "offset", 0), _number(request, "limit_bytes", None)
        client = self.calls.client(request)
        pieces = client.stream_file(thread, path, offset=offset or 0, limit_bytes=limit)
        first = await anext(pieces, b"")  # its error is the answer
        return StreamingResponse(_rest(first, pieces), media_type="application/octet-stream", headers=_HEADERS)

    async def _write(self, request: Request) -> Response:
        thread, path = _named(request)
        size_bytes = await self.calls.client(request).write_file(thread, path, pieces_of(request))
        return JSONResponse({"size_bytes": size_bytes})


def _named(request: Request) -> tuple[str, str]:
    found = _PATH.fullmatch(request.scope["raw_path"].decode("ascii"))
    path = request.query_params.get("path", "")
    if found is None:
        raise InvalidArgument("thread: a slash in its name is written as %2F")
    if not path:
        raise InvalidArgument("path: name the file in the query string")
    return unquoted(found[1]), path


def _number(request: Request, name: str, default: int | None) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise InvalidArgument(f"{name}: a number of bytes")
    return int(given)


async def _rest(first: bytes, pieces: Any) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece
