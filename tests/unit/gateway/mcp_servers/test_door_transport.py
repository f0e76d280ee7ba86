"""Sessions over HTTP, with a server at the other end of the tunnel: what its answers may cost."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gateway.mcp_servers import door_transport
from gateway.mcp_servers.session import ServerFailed, Session
from gateway.mcp_servers.traffic import Texts, Traffic
from gateway.support.printable_text import printable

Answer = Callable[[dict[str, Any]], bytes]
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
RESULTS = {"initialize": INITIALIZED, "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}}


def door(answer: Answer) -> Callable[[], socket.socket]:
    """Return what connects to a door behind which a server gives one `answer` to one request."""

    def serve(there: socket.socket) -> None:
        with there, there.makefile("rb") as sent, suppress(OSError):
            while sent.readline().strip():
                """The head of CONNECT."""
            there.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            size = 0
            while line := sent.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            there.sendall(answer(json.loads(sent.read(size))))
            there.shutdown(socket.SHUT_WR)
            sent.read()

    def connect() -> socket.socket:
        here, there = socket.socketpair()
        here.setblocking(False)
        threading.Thread(target=serve, args=(there,), daemon=True).start()
        return here

    return connect


def session(answer: Answer) -> Session:
    url, trust = "http://mcp.example/mcp", ssl.create_default_context()
    return Session(partial(door_transport.door_transport, url, {}, door(answer), trust), modern_first=True)


def head(status: int, content_type: str, *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", f"content-type: {content_type}", *more, "", ""]).encode()


def chunked(status: int, content_type: str, body: bytes, *, trailers: bytes = b"") -> bytes:
    """Return an answer whose body is in chunks of one byte."""
    chunks = b"".join(b"1\r\n%c\r\n" % one for one in body)
    return head(status, content_type, "transfer-encoding: chunked") + chunks + b"0\r\n" + trailers + b"\r\n"


def answered(message: dict[str, Any], *more: str) -> bytes:
    """Return the answer of a server that has the tool `echo`."""
    if "id" not in message:
        return head(202, "text/plain", "content-length: 0")
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in RESULTS:
        body["result"] = RESULTS[message["method"]]
    else:
        body["error"] = {"code": -32601, "message": "no such method"}
    coded = json.dumps(body).encode()
    return head(200, "application/json", f"content-length: {len(coded)}", *more) + coded


async def failure(answer: Answer) -> str:
    with pytest.raises(ServerFailed) as failed:
        await session(answer).start(60)
    return str(failed.value)


async def test_a_server_with_many_fields_and_hints_is_used() -> None:
    def answer(message: dict[str, Any]) -> bytes:
        return b"HTTP/1.1 103 Early\r\n\r\n" * 20 + answered(message, *["a: b"] * 198)

    one = session(answer)
    await one.start(60)
    await one.end()
    assert list(one.definitions.tools) == ["echo"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
async def test_what_an_error_says_is_made_once(content_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def printed(text: object, limit: int | None = None) -> str:
        made.append(text)
        return printable(text, limit)

    monkeypatch.setattr(door_transport, "printable", printed)
    asked: list[str] = []

    def answer(message: dict[str, Any]) -> bytes:
        asked.append(message["method"])
        return chunked(500, content_type, b"the reason" + b"\x1b" * 3_000)

    assert "HTTP 500: the reason\u241b" in await failure(answer)
    assert 0 < len(made) <= len(asked)


@pytest.mark.parametrize(
    "body, said",
    [
        (b'{"reason": "closed today", "how_to_allow": "come back"}', "HTTP 500: closed today; come back"),
        (b'["not an object"]', 'HTTP 500: ["not an object"]'),
        (b"[" * 8_000, f"HTTP 500: {'[' * 500}"),  # nested too deep to be read
    ],
)
async def test_an_error_is_shown_whatever_its_body_is(body: bytes, said: str) -> None:
    answer = head(500, "text/plain", f"content-length: {len(body)}") + body
    assert said in await failure(lambda _: answer)


async def test_values_are_counted_whatever_encoding_a_server_names() -> None:
    values = f'{{"jsonrpc": "2.0", "id": 1, "result": [{"0," * 150_000}0]}}'
    event = f"data: {values}\n\n".encode("cp037")  # in which a comma is another byte
    answer = head(200, "text/event-stream; charset=cp037", f"content-length: {len(event)}") + event
    assert "SSE stream ended without a response" in await failure(lambda _: answer)


@pytest.mark.parametrize(
    "answer",
    [
        lambda message: b"HTTP/1.1 103 Early\r\n\r\n" * 1_000 + answered(message),
        lambda message: answered(message, *["a: b"] * 5_000),
        lambda message: answered(message, *["a: b"] * 199),
        lambda message: chunked(200, "application/json", b"{}", trailers=b"a: b\r\n" * 5_000),
    ],
)
async def test_heads_and_trailers_with_too_many_lines_are_refused(answer: Answer) -> None:
    said = await failure(answer)
    assert "more than 200 header fields" in said or "more than 242 lines of header fields" in said


async def test_an_answer_in_pieces_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, most, received = 0, 0, Traffic.received

    def counted(traffic: Traffic, data: bytes, texts: Texts) -> None:
        nonlocal pieces
        pieces += 1
        received(traffic, data, texts)

    async def others() -> None:
        nonlocal most
        while True:
            before = pieces
            await asyncio.sleep(0)
            most = max(most, pieces - before)

    monkeypatch.setattr(Traffic, "received", counted)
    task = asyncio.create_task(others())
    await failure(lambda _: chunked(200, "text/event-stream", b":\n" * 5_000))
    task.cancel()
    assert pieces >= 10_000
    assert most <= 1_000
