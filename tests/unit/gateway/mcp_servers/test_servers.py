"""Calls of servers' tools: each within its time, and none that makes the tools of all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.messages import ToolCall
from agent.tools.tool import Tool, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.config.mcp_settings import McpServerSettings
from gateway.mcp_servers.definitions import Definitions
from gateway.mcp_servers.places import Entry, Place, Server
from gateway.mcp_servers.servers import McpServers
from gateway.mcp_servers.session import ServerFailed
from gateway.storage.mcp_pin_store import McpPins
from gateway.support.heavy_work import HeavyWork
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.gateway.mcp_servers.test_session import ECHO, Answers, Send, older, session


class _Pins:
    """Satisfies McpPinStore: what was pinned, and what was seen is accepted."""

    def __init__(self, pinned: str) -> None:
        self.pinned = pinned

    async def of(self, *_: Any) -> list[McpPins]:
        return [McpPins("acme", "default", "notes", pinned=self.pinned, pinned_digest="d")]

    async def saw(self, seen: McpPins, *, first_use: bool) -> McpPins:
        del first_use
        return seen


class _Connecting:
    """Satisfies Connecting: sessions with a server that answers."""

    failures = ServerFailed

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    async def enter(self, stack: AsyncExitStack, *_: Any) -> None:
        """Lease nothing."""

    async def started(self, place: Place, server: Server, entry: Entry) -> Any:
        del place, server, entry
        one = session(self.answers)
        await one.start(20)
        return one


class _Gateway:
    """The servers of one tenant, whose only one is `notes`."""

    def __init__(self, files: Path, answers: Answers, *tools: dict[str, Any], timeout_s: float = 60) -> None:
        pinned = Definitions.read(tools).to_json()
        self.heavy_work = HeavyWork()
        parts = cast(Any, SimpleNamespace(heavy_work=self.heavy_work)), cast(Any, _Pins(pinned))
        self.servers = McpServers(*parts, _begins=cast(Any, _Connecting(answers)))
        settings = McpServerSettings(command=("notes",), timeout_s=timeout_s)
        agents = {"default": SimpleNamespace(mcp=SimpleNamespace(servers={"notes": settings}))}
        policy = SimpleNamespace(document=SimpleNamespace(limits=SimpleNamespace(timeout_s=60)))
        self.tenant = cast(Any, SimpleNamespace(name="acme", agents=agents, policy=policy))
        context = SimpleNamespace(run_id="")
        self.path = cast(Any, SimpleNamespace(thread=SimpleNamespace(id="t"), sandbox=LocalFS(files), context=context))

    async def toolbox(self, name: str) -> Toolbox:
        found = await self.servers.toolbox(self.tenant, self.path, name)
        assert found is not None
        return found

    async def called(self, name: str, arguments: dict[str, Any]) -> str:
        tools = await self.toolbox(name)
        judged = tools.prepare(ToolCall(id="c", name=name, arguments=arguments))
        assert judged.unfit is None, judged.unfit.text()
        return (await tools.execute(judged, ToolContext("c"))).text()


@asynccontextmanager
async def made(*given: Any, **more: Any) -> AsyncIterator[_Gateway]:
    one = _Gateway(*given, **more)
    try:
        yield one
    finally:
        await one.servers.close()
        one.heavy_work.close()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the tools that are made from now on, in order."""
    names: list[str] = []

    def tool(name: str, *given: Any, **more: Any) -> Tool:
        names.append(name)
        return Tool(name, *given, **more)

    monkeypatch.setattr("gateway.mcp_servers.servers.Tool", tool)
    return names


async def test_a_call_makes_the_tool_that_it_calls_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"type": "object", "properties": {f"p{number}": {} for number in range(50)}}
    tools = [{**ECHO, "name": f"t{number}", "inputSchema": wide} for number in range(100)]
    names = counted(monkeypatch)
    async with made(tmp_path, older(_changing), *tools) as gateway:
        found = await gateway.toolbox("notes/t7")
        assert names == [spec.name for spec in found.specs()] == ["notes/t7"]
        found = await gateway.toolbox("notes/other")
        assert names[1:] == ["notes/other"]
        judged = found.prepare(ToolCall(id="c", name="notes/other", arguments={}))
        assert "no tool of this name" in (await found.execute(judged, ToolContext("c"))).text()
        specs = await gateway.servers.specs(gateway.tenant, gateway.path)
        assert [spec.name for spec in specs] == [f"notes/t{number}" for number in range(100)]
        assert specs[7].parameters == wide


async def _changing(_: str, __: dict[str, Any], id_: Any, send: Send) -> None:
    await send({"method": "notifications/tools/list_changed"})
    await send({"id": id_, "result": {"content": [{"type": "text", "text": "done"}]}})


@pytest.mark.parametrize("hanging", ["tools/list", "tools/call"])
async def test_a_call_waits_for_a_server_no_longer_than_it_may_take(tmp_path: Path, hanging: str) -> None:
    hangs = asyncio.Event()

    async def answer(method: str, params: dict[str, Any], id_: Any, send: Send) -> None:
        if method == hanging and hangs.is_set():
            return
        await older(_changing)(method, params, id_, send)

    async with made(tmp_path, answer, ECHO, timeout_s=3) as gateway:
        assert await gateway.called("notes/echo", {}) == "done"
        hangs.set()
        async with asyncio.timeout(60):
            said = await gateway.called("notes/echo", {})
        assert said == "the MCP server notes: it did not answer within 3 s, and the call was cancelled"
        hangs.clear()
        assert await gateway.called("notes/echo", {}) == "done"
