"""The lines of a body, each a message of a stream: a client may be silent between two of them, and not within one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from gateway.errors import DeadlineExceeded
from gateway.http import calls
from gateway.http.json_calls import lines_of

_TIMEOUT_S = 0.05


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[bytes]:
    monkeypatch.setattr(calls, "BODY_TIMEOUT_S", _TIMEOUT_S)
    return asyncio.Queue()


def _request(body: asyncio.Queue[bytes]) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": await body.get(), "more_body": True}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_silence_between_two_lines_is_no_stall(body: asyncio.Queue[bytes]) -> None:
    lines = lines_of(_request(body))
    for said in (b"first", b"second"):
        next_line = asyncio.ensure_future(anext(lines))
        await asyncio.wait([next_line], timeout=4 * _TIMEOUT_S)
        assert not next_line.done()
        body.put_nowait(said + b"\n")
        assert await next_line == said


async def test_a_line_that_has_begun_must_arrive(body: asyncio.Queue[bytes]) -> None:
    lines = lines_of(_request(body))
    body.put_nowait(b"whole\nbegun")
    assert await anext(lines) == b"whole"
    with pytest.raises(DeadlineExceeded, match="did not arrive in time"):
        await anext(lines)


async def test_blank_lines_are_passed_over(body: asyncio.Queue[bytes]) -> None:
    blank = b"\n" * 50_000 + b" \r\n" * 50_000
    for piece in (blank, blank + b" begun", b",\n" + blank, blank + b"whole\n" + blank, b"begun", b"", b" too\n"):
        body.put_nowait(piece)
    lines = lines_of(_request(body))
    assert [await anext(lines) for _ in range(3)] == [b"begun,", b"whole", b"begun too"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(lines), 4 * _TIMEOUT_S)  # no line has begun


async def test_the_loop_has_a_turn_between_two_lines(body: asyncio.Queue[bytes]) -> None:
    body.put_nowait(b"{}\n" * 1_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    with_others = asyncio.create_task(others())
    lines = lines_of(_request(body))
    for _ in range(1_000):
        assert await anext(lines) == b"{}"
    with_others.cancel()
    assert turns >= 900
