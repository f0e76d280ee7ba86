"""A unary call ends when its client leaves, as over gRPC."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from gateway.e2b.envd_call import EnvdCall, unary
from gateway.e2b.open_streams import OpenStreams

CONTEXT: Any = SimpleNamespace(request_headers={})
NONE: Any = None


async def test_a_call_is_cancelled_when_its_client_leaves() -> None:
    gone = asyncio.Event()
    came_of: list[str] = []

    async def method(_call: EnvdCall, request: str, _context: object) -> str:
        try:
            gone.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            came_of.append(f"{request}: cancelled")
            raise
        return ""

    with pytest.raises(ConnectError) as ended:
        await unary(method, EnvdCall(NONE, NONE, OpenStreams(), gone))("move", CONTEXT)
    assert ended.value.code == Code.CANCELED
    assert came_of == ["move: cancelled"]


async def test_a_call_whose_client_stays_returns_and_raises_what_its_method_does() -> None:
    async def method(_call: EnvdCall, request: str, _context: object) -> str:
        return {"known": "answer"}[request]

    call = EnvdCall(NONE, NONE, OpenStreams(), asyncio.Event())
    assert await unary(method, call)("known", CONTEXT) == "answer"
    with pytest.raises(ConnectError) as failed:
        await unary(method, call)("unknown", CONTEXT)
    assert failed.value.code == Code.INTERNAL
