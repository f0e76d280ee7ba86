"""The tools of an agent's servers, with a program that cannot be used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from gateway.config.mcp_settings import McpServerSettings
from gateway.mcp_servers.servers import McpServers
from gateway.support.heavy_work import HeavyWork
from sandbox.errors import NotFound

WRITTEN = b"KeyError: customer 4711, secret=hunter2"


class Sandbox:
    """The sandbox of a thread, whose program writes to stderr and ends."""

    @asynccontextmanager
    async def leased(self) -> AsyncIterator[object]:
        yield object()

    async def remove_process(self, _: str) -> None:
        raise NotFound("nothing was started")

    async def wait_process(self, _: str, *, wait_s: float) -> Any:
        del wait_s
        stderr = SimpleNamespace(size_bytes=len(WRITTEN))
        return SimpleNamespace(running=False, outcome="exited", exit_code=1, started_ns=1, stderr=stderr)

    async def read_process(self, _: str, *, stderr: bool = False, offset: int, wait_s: float = 0) -> Any:
        del wait_s
        return SimpleNamespace(data=WRITTEN if stderr else b"", end=True, offset=offset)

    async def write_process(self, *_: Any, **__: Any) -> None:
        """Take the input."""


class Calls:
    """The tool path, where the start of the program is allowed."""

    heavy_work = HeavyWork()

    async def call(self, _: object, new: Any) -> object:
        new.executor.process = SimpleNamespace(started_ns=1)
        return object()


class Pins:
    """No server was seen."""

    async def of(self, *_: str) -> list[object]:
        return []


async def test_the_log_names_the_kind_of_a_failure_and_the_result_says_why() -> None:
    settings = McpServerSettings(command=("python3", "/workspace/notes.py"))
    agents = {"default": SimpleNamespace(mcp=SimpleNamespace(servers={"notes": settings}))}
    path = SimpleNamespace(thread=SimpleNamespace(id="t", name="t"), sandbox=Sandbox())
    servers = McpServers(cast(Any, Calls()), cast(Any, Pins()))
    with capture_logs() as logged:
        tools = await servers.toolbox(cast(Any, SimpleNamespace(name="a", agents=agents)), cast(Any, path), "notes/x")
    await servers.close()
    assert tools is not None
    (spec,) = tools.specs()  # what a call answers, too
    assert WRITTEN.decode() in spec.description
    (line,) = logged
    assert (line["event"], line["server"]) == ("an MCP server is not offered", "notes")
    assert line["error"].startswith("Unusable, ServerFailed, ")
    assert WRITTEN.decode() not in str(logged)
