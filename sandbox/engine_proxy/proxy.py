"""EngineProxy: the server. Each connection carries one request, so that a second one cannot hide behind it.

Requests and validated bodies are encoded again from their parsed form: the engine reads what was validated.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sandbox.engine_proxy import routes
from sandbox.engines.background import BackgroundTasks
from sandbox.engines.docker.container_config import INSTANCE_LABEL

log = logging.getLogger(__name__)

_HEAD_TIMEOUT_S = 30.0
_BODY_LIMIT_BYTES = 1024 * 1024
_ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 256 * 1024
_CONNECTIONS = 256
# Header fields that pass unchanged.
_KEPT_FIELDS = ("user-agent", "content-type", "x-registry-auth", "accept")


def listening_socket(path: Path, *, group: int | None = None) -> socket.socket:
    """Create a socket for its owner and a group; an existing one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        made.bind(str(path))
    finally:
        os.umask(before)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)
    return made


@dataclass
class EngineProxy:
    """Passes the requests of a gateway with channels in `channel_root` to the socket `engine`."""

    engine: Path
    channel_root: Path
    _connections: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTIONS))
    _filling: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Strong references: asyncio drops the task of a connection once the client has closed it.
    _serving: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def serve(self, listen: socket.socket) -> asyncio.Server:
        return await asyncio.start_unix_server(self._take, sock=listen, limit=routes.LIMIT_BYTES)

    def _take(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._serving.begin(self._serve(reader, writer))

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with self._connections:
            try:
                await self._answer(reader, writer)
            except routes.BadRequest as error:
                await _send_error(writer, 400, f"the engine proxy does not take this: {error}")
            except routes.Refused as error:
                log.warning("refused: %s", error)
                await _send_error(writer, 403, f"the engine proxy refuses it: {error}")
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                await _send_error(writer, 502, f"the engine does not answer its proxy: {error!r}")
            except Exception:
                log.exception("fault")
                await _send_error(writer, 500, "a fault of the engine proxy")
            finally:
                writer.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
            try:
                data = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                if not error.partial:
                    return
                raise routes.BadRequest("it ends within its head") from error
            except asyncio.LimitOverrunError as error:
                raise routes.BadRequest(f"its head is longer than {routes.LIMIT_BYTES} bytes") from error
        head = routes.read_head(data)
        route, container = routes.route_of(head)
        path = head.path
        if container is not None:
            found = await self._container(head, container)
            if found is None:
                await _send_error(writer, 404, f"No such container: {container}")
                return
            if route.starts and found.get("Path") == routes.NEVER_STARTED:
                raise routes.Refused("this container is never started")
            if route.starts:
                # The channel is mounted now, and may have been replaced since.
                routes.check_binds(found, self.channel_root)
            if route.files:
                routes.check_files(found, written=head.method == "PUT")
            # By id: another container may have the name by now.
            path = f"/containers/{found['Id']}{path.removeprefix(f'/containers/{container}')}"
        body = await self._body(reader, head, route)
        if route.body == "container" and body is not None and routes.fills_volume(json.loads(body)):
            # The engine copies by path, as root: concurrent copies to one volume could lead each other out of it.
            async with self._filling:
                await self._forward(reader, writer, head, path, body, to_the_end=True)
        else:
            await self._forward(reader, writer, head, path, body)

    async def _container(self, head: routes.Head, name: str) -> dict[str, Any] | None:
        """Return the engine's description of a container; None if it is missing, Refused if it is not a gateway's."""
        async with asyncio.timeout(60.0), _connected(self.engine) as (reader, writer):
            request = f"GET {head.version}/containers/{quote(name)}/json HTTP/1.0\r\nHost: docker\r\n\r\n"
            writer.write(request.encode())
            status = (await reader.readline()).split()
            while (await reader.readline()).strip():
                pass
            answer = await reader.read(-1) if len(status) > 1 else b""
        if len(answer) > _ANSWER_LIMIT_BYTES or len(status) < 2:
            raise OSError("the engine's answer is none")
        if status[1] == b"404":
            return None
        found = json.loads(answer)
        if status[1] != b"200" or INSTANCE_LABEL not in (found["Config"].get("Labels") or {}):
            raise routes.Refused(f"container {name} is not a gateway's")
        return dict(found)

    async def _body(self, reader: StreamReader, head: routes.Head, route: routes.Route) -> bytes | None:
        """Return the validated body; None for one that passes unchanged."""
        if route.body == "stream":
            return None
        length = head.length_bytes
        if length is None or length > _BODY_LIMIT_BYTES:
            raise routes.BadRequest(f"a body that is looked at has a length, {_BODY_LIMIT_BYTES} bytes at most")
        data = await asyncio.wait_for(reader.readexactly(length), _HEAD_TIMEOUT_S)
        if route.body == "none":
            return b""
        try:
            body = json.loads(data)
        except ValueError as error:
            raise routes.BadRequest("its body is no JSON") from error
        if route.body == "volume":
            routes.check_volume(body)
        else:
            routes.check_container(body, self.channel_root)
        return json.dumps(body).encode()

    async def _forward(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        head: routes.Head,
        path: str,
        body: bytes | None,
        *,
        to_the_end: bool = False,
    ) -> None:
        """Forward a request and its answer; `to_the_end` waits for the answer even if the client is gone."""
        fields = {"host": "docker", "connection": "close"}
        fields |= {name: head.fields[name] for name in _KEPT_FIELDS if name in head.fields}
        if body is not None:
            fields["content-length"] = str(len(body))
        elif head.length_bytes is None:
            fields["transfer-encoding"] = "chunked"
        else:
            fields["content-length"] = str(head.length_bytes)
        target = quote(f"{head.version}{path}", safe="/:") + (f"?{urlencode(head.query)}" if head.query else "")
        lines = [f"{head.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        async with _connected(self.engine) as (answer, engine):
            engine.write("\r\n".join(lines).encode("latin-1") + (body or b""))
            # Concurrently: send the rest of the body, or watch for the client to hang up, which ends a pull, say.
            if body is None:
                beside = asyncio.create_task(_send_body(reader, engine, head))
            else:
                beside = asyncio.create_task(asyncio.sleep(0) if to_the_end else _watch_hangup(reader, engine))
            begun = False
            try:
                while piece := await answer.read(_PIECE_BYTES):
                    begun = True
                    writer.write(piece)
                    await writer.drain()
            except OSError:
                if not begun:
                    raise
                writer.transport.abort()  # an error message must not look like the rest of the answer
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)


async def _watch_hangup(reader: StreamReader, engine: StreamWriter) -> None:
    """Abort the engine's connection when the client hangs up or sends unexpected data."""
    await reader.read(1)
    engine.transport.abort()


async def _send_body(reader: StreamReader, engine: StreamWriter, head: routes.Head) -> None:
    """Forward a body, and no byte after its end. If it breaks off, abort the engine's connection."""
    try:
        if head.length_bytes is not None:
            await _copy(reader, engine, head.length_bytes)
            return
        while True:
            line = (await reader.readuntil(b"\r\n")).strip()
            size = int(line, 16) if line.isalnum() and len(line) <= 8 else -1
            if not 0 <= size <= 64 * 1024 * 1024:
                raise routes.BadRequest("a chunk's length is none")
            engine.write(b"%x\r\n" % size)
            await _copy(reader, engine, size)
            if await reader.readexactly(2) != b"\r\n":  # after the last chunk, too: no trailers
                raise routes.BadRequest("a chunk is longer than it says")
            engine.write(b"\r\n")
            await engine.drain()
            if size == 0:
                return
    except BaseException:
        engine.transport.abort()
        raise


async def _copy(reader: StreamReader, engine: StreamWriter, size: int) -> None:
    while size:
        piece = await reader.read(min(size, _PIECE_BYTES))
        if not piece:
            raise routes.BadRequest("its body ends early")
        size -= len(piece)
        engine.write(piece)
        await engine.drain()


@contextlib.asynccontextmanager
async def _connected(engine: Path) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(engine, limit=_ANSWER_LIMIT_BYTES)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _send_error(writer: StreamWriter, status: int, message: str) -> None:
    """Answer in the engine's format, unless the client is gone."""
    body = json.dumps({"message": message}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with contextlib.suppress(OSError):
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
