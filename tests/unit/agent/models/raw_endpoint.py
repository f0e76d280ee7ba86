"""An endpoint that sends whatever a test writes, over real HTTP/1.1 on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Answers = Callable[[asyncio.StreamWriter], Awaitable[None]]

SSE = {"content-type": "text/event-stream"}


class RawEndpoint:
    """Plays `answers`, the last one again and again. `requests`: the first line, the headers and the body of each."""

    def __init__(self, *answers: Answers) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.base_url = ""
        self._answers = list(answers)
        self._connections: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._connections.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            writer.close()

    async def close(self) -> None:
        """End what is being answered."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((head[0], headers, json.loads(body)))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            await answer(writer)


@contextlib.asynccontextmanager
async def serving(*answers: Answers) -> AsyncIterator[RawEndpoint]:
    """Serve on a free port."""
    endpoint = RawEndpoint(*answers)
    server = await asyncio.start_server(endpoint._serve, "127.0.0.1", 0)
    endpoint.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        server.close()
        await endpoint.close()
        await asyncio.sleep(0)  # its connections are closed in the tasks of the server


def head(status: int = 200, **headers: str) -> bytes:
    """Return the head of an answer that ends with the connection."""
    sent = {"content-type": "application/json", "connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return "\r\n".join([f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in sent.items()), "", ""]).encode()


def answering(body: str | bytes | dict[str, Any], status: int = 200, **headers: str) -> Answers:
    """Send one body."""
    if isinstance(body, dict):
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, **headers) + data)
        await writer.drain()

    return answer


def repeating(piece: bytes, status: int = 200, *, times: int, sent: list[int] | None = None, **headers: str) -> Answers:
    """Send a piece again and again; `sent` hears how many bytes were taken."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, **headers))
        for _ in range(times):
            writer.write(piece)
            await writer.drain()
            if sent is not None:
                sent.append(len(piece))

    return answer


def bomb(mib: int) -> bytes:
    """Return so many MiB of one line, compressed a thousand to one."""
    return gzip.compress(b"x" * (mib * 2**20))
