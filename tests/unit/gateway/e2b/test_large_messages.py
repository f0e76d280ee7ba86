"""A message to a sandbox that would take too long to decode is refused before it is decoded."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.http_settings import HttpSettings
from gateway.e2b.envd_calls import EnvdCalls
from gateway.e2b.envd_face import EnvdRoute
from gateway.e2b.open_streams import OpenStreams
from gateway.errors import NotFound
from gateway.http.app import make_app

_ENTRIES = b"".join(b"\x1a\x0b\x0a\x07A%06d\x12\x00" % number for number in range(300_000))


def framed(raw: bytes) -> bytes:
    """Return a message of a stream as Connect frames it."""
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def start_request() -> bytes:
    """Return an encoded StartRequest whose process has many variables."""
    size, length = len(_ENTRIES), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return b"\x0a" + length + bytes([size]) + _ENTRIES


@pytest.mark.parametrize(
    "path, kind, body, said",
    [
        ("Start", "application/connect+proto", framed(start_request()), b"more than 16,384 entries"),
        (
            "Start",
            "application/connect+json",
            framed(b'{"process":{"args":[""' + b',""' * 1_000_000 + b"]}}"),
            b"100,000 parts",
        ),
        ("List", "application/json", b'{"x":[""' + b',""' * 1_000_000 + b"]}", b"100,000 parts"),
    ],
    ids=["proto", "stream of json", "json"],
)
async def test_a_message_with_too_many_parts_is_refused(path: str, kind: str, body: bytes, said: bytes) -> None:
    async def found(*_given: object) -> Any:
        return SimpleNamespace(id="i1", state="running", tenant="t", thread="t", options={})

    async def fails(*_given: object, **_options: object) -> Any:
        raise NotFound("decoded")

    async def holder(*_given: object) -> Any:
        return None, SimpleNamespace(start_process=fails, processes=fails)

    access: Any = SimpleNamespace(sandbox=found, token_holder=holder)
    lifecycle: Any = SimpleNamespace(streams=OpenStreams())
    app = make_app([EnvdRoute(EnvdCalls(access, lifecycle), "/e2b")], HttpSettings(), loopback=False)
    arriving, sent = [body], list[Any]()

    async def receive() -> Any:
        if not arriving:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": arriving.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/e2b/process.Process/{path}",
        "query_string": b"",
        "headers": [(b"e2b-sandbox-id", b"i1"), (b"content-type", kind.encode())],
        "state": {"gone": asyncio.Event()},
    }
    before = time.thread_time()
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    assert time.thread_time() - before < 0.5
    assert said in b"".join(message.get("body", b"") for message in sent)[:1000]
