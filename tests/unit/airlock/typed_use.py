"""What a type checker sees of the two clients: `mypy` checks this file (deploy/check)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractContextManager
from typing import assert_type

import airlock
import gateway.client


async def asynchronous(client: airlock.Client) -> None:
    assert_type(await client.call_tool("ls", {}), airlock.ToolResult)
    assert_type(client.watch_run("r"), AsyncIterator[airlock.Event])


def blocking(client: airlock.SyncClient) -> None:
    def take(stream: str, data: bytes) -> None: ...

    assert_type(client.call_tool("ls", {}, on_output=take).raise_for_status(), airlock.ToolResult)
    assert_type(client.execute("ls", cwd="/tmp", env={"A": "b"}, stdin=b"x"), airlock.ProgramResult)
    assert_type(client.watch_run("r"), Generator[airlock.Event, None, None])
    assert_type(client.forward_port("t", 1), AbstractContextManager[airlock.SyncPortConnection])
    assert_type(client.download("t", "/workspace/a"), airlock.Transfer)
    client.call_tool("ls")  # type: ignore[call-arg]
    client.read_file("t", b"path")  # type: ignore[arg-type]
    client.aclose()  # type: ignore[attr-defined]


def the_same_classes(client: airlock.Client, error: airlock.NotFound) -> tuple[gateway.client.Client, Exception]:
    return client, assert_type(error, gateway.client.NotFound)
