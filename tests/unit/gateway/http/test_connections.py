"""What a peer may make an HTTP connection keep, whatever it is in the midst of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http.connections import HEAD_LIMIT_BYTES, Connection

WAIT_S = 30
SLOW = b"POST /slow HTTP/1.1\r\nHost: h\r\n"
AHEAD = SLOW + b"Content-Length: 0\r\n\r\n"
CHUNKED = SLOW + b"Transfer-Encoding: chunked\r\n\r\n"
LINES = (b"x-a: " + b"b" * 250 + b"\r\n") * 64
ENDLESS = {
    "the lines of a second head": (AHEAD + b"GET / HTTP/1.1\r\n", LINES),
    "a line of a second head": (AHEAD + b"GET / HTTP/1.1\r\nx-a: ", b"b" * 16_384),
    "a second URL": (AHEAD + b"GET /", b"u" * 16_384),
    "trailers": (CHUNKED + b"0\r\n", LINES),
    "the extension of a chunk": (CHUNKED + b"1;", b"e" * 16_384),
    "a first head": (b"GET / HTTP/1.1\r\n", LINES),
}


@asynccontextmanager
async def serving(answered: asyncio.Event) -> AsyncIterator[int]:
    """Serve on loopback; each request is answered with the size of its body, once `answered` is set."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await answered.wait()
        body = str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        answered.set()


@pytest.mark.parametrize("what", ENDLESS)
async def test_nothing_without_end_is_kept(what: str) -> None:
    begun, piece = ENDLESS[what]
    async with serving(asyncio.Event()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        sent = 0
        with suppress(ConnectionError):
            while sent < 256 * HEAD_LIMIT_BYTES:
                writer.write(piece)
                sent += len(piece)
                await asyncio.wait_for(writer.drain(), WAIT_S)
                await asyncio.sleep(0)
        assert sent < 256 * HEAD_LIMIT_BYTES
        with suppress(ConnectionError):
            assert (await asyncio.wait_for(reader.read(), WAIT_S)).startswith(b"HTTP/1.1 431") == (
                what == "a first head"
            )
        writer.close()


async def test_bodies_of_any_size_and_heads_within_the_limit_are_taken_also_ahead() -> None:
    answered = asyncio.Event()
    async with serving(answered) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SLOW + b"Content-Length: %d\r\n\r\n" % (16 * HEAD_LIMIT_BYTES) + b"b" * (16 * HEAD_LIMIT_BYTES))
        writer.write(CHUNKED + b"4000\r\n%b\r\n" % (b"c" * 0x4000) * 16 + b"0\r\nx-trailer: t\r\n\r\n")
        writer.write(AHEAD[:-2] + LINES * 3 + b"\r\n")
        answered.set()
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 3 or not answers.endswith(b"\r\n\r\n0"):
            piece = await asyncio.wait_for(reader.read(65_536), WAIT_S)
            assert piece
            answers += piece
        assert [answer.rpartition(b"\r\n")[2] for answer in answers.split(b"HTTP/1.1 200")[1:]] == [
            str(size).encode() for size in (16 * HEAD_LIMIT_BYTES, 16 * 0x4000, 0)
        ]
        writer.close()
