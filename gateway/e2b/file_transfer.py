"""GET and POST /files of envd: downloads and uploads, also by a signed URL without a token."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.e2b.envd_call import EnvdCall, check_authorization, check_user
from gateway.e2b.errors import NoCounterpart
from gateway.e2b.paths import SandboxPath, path_of
from gateway.e2b.uploads import body_pieces, multipart_events
from gateway.errors import InvalidArgument, IsADirectory

_METADATA_PREFIX = "x-metadata-"


async def download(call: EnvdCall, request: Request) -> Response:
    """Return a file."""
    _check_user(request)
    path = _asked_path(request)
    found = await call.client.stat_file(call.thread, path.inside)
    if found.kind == "directory":
        raise IsADirectory(f"path {path.shown!r} is a directory")
    pieces = aiter(call.client.stream_file(call.thread, path.inside))
    first = await anext(pieces, b"")

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    # Whatever it is, a browser must not show it as a page of this host.
    headers = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
    return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)


async def upload(call: EnvdCall, request: Request) -> Response:
    """Write the files of a body, one after the other, each as a whole or not at all."""
    _check_user(request)
    if any(name.startswith(_METADATA_PREFIX) for name in request.headers):
        raise NoCounterpart("X-Metadata-*: files here have no metadata of their own")
    asked = request.query_params.get("path", "")
    if request.headers.get("content-type", "").partition(";")[0].strip() == "application/octet-stream":
        path = _asked_path(request)
        await call.client.write_file(call.thread, path.inside, body_pieces(request))
        return JSONResponse([_written(path)])
    events = multipart_events(request)
    written: list[SandboxPath] = []

    async def data() -> AsyncIterator[bytes]:
        async for kind, value in events:
            if kind == "end":
                return
            yield value
        raise InvalidArgument("the body ends within a file")

    async for kind, name in events:
        if kind != "part":
            continue
        if asked and written:
            raise InvalidArgument("path: it names one file, and the body has several")
        path = path_of(asked or name.decode())
        await call.client.write_file(call.thread, path.inside, data())
        written.append(path)
    return JSONResponse([_written(path) for path in written])


def _check_user(request: Request) -> None:
    check_user(request.query_params.get("username"))
    check_authorization(request.headers.get("authorization"))


def _asked_path(request: Request) -> SandboxPath:
    asked = request.query_params.get("path", "")
    if not asked:
        raise InvalidArgument("path: the path of a file is expected")
    return path_of(asked)


def _written(path: SandboxPath) -> dict[str, str]:
    return {"name": path.name, "type": "file", "path": path.shown}
