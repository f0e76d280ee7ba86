"""The tools of agents' MCP servers, and the sessions behind them: one for each thread, agent and server.

What a model is shown comes from the pins, so a server is started only by the first call of one of its tools. A server
that was never seen is started by the first run. If a sandbox was stopped, the next call begins a new session.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from pydantic import JsonValue

from agent.messages import ToolResult, ToolSpec
from agent.tool_call import CallContext
from agent.tools.tool import Capability, JsonArguments, Tool, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.errors import AirlockError
from gateway.mcp_servers.arguments import ServerArguments, arguments_of
from gateway.mcp_servers.definitions import Definition, Definitions
from gateway.mcp_servers.places import Entry, Place, Server, Unusable
from gateway.mcp_servers.results import result_of
from gateway.network.door import Doors
from gateway.storage.mcp_pin_store import McpPins, McpPinStore
from gateway.support.heavy_work import Work, at_once
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls, ToolPath
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from gateway.mcp_servers.connecting import Connecting
    from gateway.mcp_servers.session import Session

DEFAULT_AGENT = "default"
"""The agent whose servers serve single calls, which name none."""
_SESSIONS_LIMIT = 256
_IDLE_S = 1800.0
# More is read, and more tools are made, in turns of their tenant.
_AT_ONCE_CHARS = 16 * 1024
_TOOLS_A_TURN = 16
_CAUSES_LIMIT = 8
log = structlog.get_logger(__name__)


@dataclass(eq=False)
class McpServers:
    """The servers of all agents, in this process."""

    tool_calls: ToolCalls
    pins: McpPinStore
    doors: Doors | None = None
    _entries: dict[tuple[str, str, str], Entry] = field(default_factory=dict)
    _begins: Connecting | None = None

    # --- what is offered ---

    async def of_run(self, tenant: Tenant, path: ToolPath, agent: str) -> Capability | None:
        """Return the tools of an agent for a run; None where it has no servers."""
        place = Place(tenant, path.thread, path.sandbox, agent, agent, path.context.run_id)
        servers = place.servers()
        return Capability("mcp", tools=(await self._tools(place, servers))[0]) if servers else None

    async def toolbox(self, tenant: Tenant, path: ToolPath, name: str) -> Toolbox | None:
        """Return what makes a call that belongs to no run, with the tool `name`: one of the default agent's servers.

        None where the agent has no such server.
        """
        place = Place(tenant, path.thread, path.sandbox, DEFAULT_AGENT, "", "")
        servers = [one for one in place.servers() if one.name == name.partition("/")[0]]
        if not servers:
            return None
        tools, problems = await self._tools(place, servers, only=name)
        if all(tool.name != name for tool in tools):
            why = problems.get(servers[0].name) or (
                "it has no tool of this name that the operator accepted: `airlock mcp pins list` shows its tools, and "
                "`airlock mcp pins accept` accepts them"
            )
            tools.append(_absent(name, f"the MCP server {servers[0].name}: {why}"))
        return Toolbox(tools)

    async def specs(self, tenant: Tenant, path: ToolPath) -> Sequence[ToolSpec]:
        """Return the accepted tools of the default agent's servers, without starting anything."""
        place = Place(tenant, path.thread, path.sandbox, DEFAULT_AGENT, "", "")
        servers = place.servers()
        tools, _ = await self._tools(place, servers, look=False) if servers else ([], {})
        specs: list[ToolSpec] = []
        for begin in range(0, len(tools), _TOOLS_A_TURN):
            specs += await self._work(place)(_specs, tools[begin : begin + _TOOLS_A_TURN])
        return specs

    async def _tools(
        self, place: Place, servers: Sequence[Server], *, look: bool = True, only: str = ""
    ) -> tuple[list[Tool], Mapping[str, str]]:
        """Return the accepted tools of servers, or `only` that of a name, and why some could not be looked at."""
        known = {pins.server: pins for pins in await self.pins.of(place.tenant.name, place.agent)}
        problems: dict[str, str] = {}
        new = [one for one in servers if look and one.name not in known]
        looks = await asyncio.gather(*(self._first_sight(place, one) for one in new))
        for server, seen in zip(new, looks, strict=True):
            if isinstance(seen, McpPins):
                known[server.name] = seen
            else:
                problems[server.name] = seen
        tools: list[Tool] = []
        for server in servers:
            if server.name in known:
                tools += await self._made(place, server, known[server.name].pinned, only)
        return tools, problems

    async def _made(self, place: Place, server: Server, pinned: str, only: str) -> list[Tool]:
        """Make tools of what was pinned, which takes some milliseconds for each."""
        work = at_once if only and len(pinned) <= _AT_ONCE_CHARS else self._work(place)
        definitions = (await work(Definitions.from_json, pinned)).tools
        wanted = [one for name, one in definitions.items() if only in ("", f"{server.name}/{name}")]
        tools: list[Tool] = []
        for begin in range(0, len(wanted), _TOOLS_A_TURN):
            some = wanted[begin : begin + _TOOLS_A_TURN]
            tools += await work(lambda some: [self._tool(place, server, one) for one in some], some)
        return tools

    async def _first_sight(self, place: Place, server: Server) -> McpPins | str:
        """Start a server of which nothing was ever seen, so that its tools can be accepted; return why it failed."""
        try:
            async with self._session(place, server, None) as (entry, session):
                return await self._noticed(place, server, entry, session)
        except (Unusable, SandboxError, AirlockError) as error:
            log.warning("an MCP server is not offered", **_whose(place, server), error=_kinds(error))
            return str(error)

    def _tool(self, place: Place, server: Server, definition: Definition) -> Tool:
        name = f"{server.name}/{definition.name}"

        async def run(arguments: ServerArguments, context: ToolContext) -> ToolResult:
            if errors := await arguments.late_errors(self._work(place)):
                return ToolResult.error(f"the arguments of {name} do not fit: {'; '.join(errors)}")
            return await self._call(place, server, definition, arguments.root, context)

        return Tool(
            name,
            definition.description,
            arguments_of(json.dumps(definition.parameters)),
            run,
            writes_anywhere=server.settings.command is not None,
        )

    def _work(self, place: Place) -> Work:
        return self.tool_calls.heavy_work.of(place.tenant.name)

    # --- calls ---

    async def _call(
        self,
        place: Place,
        server: Server,
        definition: Definition,
        arguments: Mapping[str, JsonValue],
        context: ToolContext,
    ) -> ToolResult:
        on_output = context.on_output
        timeout_s = min(server.settings.timeout_s, place.tenant.policy.document.limits.timeout_s)

        def progressed(text: str) -> None:
            if on_output is not None:
                on_output("stderr", f"{text}\n".encode("utf-8", "replace"))

        try:
            async with self._session(place, server, context.hooks) as (entry, session):
                try:
                    async with asyncio.timeout(timeout_s):
                        await session.list_tools()
                        await self._noticed(place, server, entry, session)
                        _check_pinned(definition, session.definitions)
                        answer = await session.call(definition.name, arguments, on_progress=progressed)
                except TimeoutError:
                    late = f"it did not answer within {timeout_s:g} s, and the call was cancelled"
                    raise Unusable(late) from None
            return await result_of(answer, context.call_id, place.sandbox, self._work(place))
        except (Unusable, SandboxError, AirlockError) as error:
            said = error.outside if isinstance(error, SandboxError) else str(error)
            return ToolResult.error(f"the MCP server {server.name}: {said}")

    async def _noticed(self, place: Place, server: Server, entry: Entry, session: Session) -> McpPins:
        """Store what a server shows, if it was not yet."""
        found = session.definitions
        if entry.noticed is not None and entry.noticed.seen_digest == found.digest:
            return entry.noticed
        seen = McpPins(
            place.tenant.name,
            place.agent,
            server.name,
            seen=found.to_json(),
            seen_digest=found.digest,
            left_out="\n".join(found.left_out),
        )
        pins = await self.pins.saw(seen, first_use=server.settings.pins == "first_use")
        entry.noticed = pins
        if pins.status != "pinned":
            log.warning("an MCP server shows tools that are not accepted", **_whose(place, server))
        return pins

    # --- sessions ---

    @asynccontextmanager
    async def _session(
        self, place: Place, server: Server, context: CallContext | None
    ) -> AsyncIterator[tuple[Entry, Session]]:
        """Yield a session that can be used in this block, and keep its sandbox leased meanwhile."""
        connecting = await self._connecting()
        key = (place.thread.id, place.judged_as, server.name)
        await self._make_room()
        entry = self._entries.setdefault(key, Entry())
        entry.users += 1
        try:
            async with AsyncExitStack() as stack:
                await connecting.enter(stack, place, server, entry, context)
                async with entry.lock:
                    if entry.session is None or not await entry.session.can_go_on():
                        if entry.session is not None:
                            await entry.session.end()
                        entry.session, entry.noticed = None, None
                        entry.session = await connecting.started(place, server, entry)
                try:
                    yield entry, entry.session
                except connecting.failures as error:
                    raise Unusable(str(error)) from error
        finally:
            entry.users -= 1
            entry.used_s = time.monotonic()

    async def _connecting(self) -> Connecting:
        """Return what begins sessions; on first use, since the package for it takes a while to import."""
        if self._begins is None:
            module = await asyncio.to_thread(importlib.import_module, "gateway.mcp_servers.connecting")
            self._begins = module.Connecting(self.tool_calls, self.doors)
        return self._begins

    async def _make_room(self) -> None:
        """Forget the sessions that were idle for long, and the longest idle ones where there are too many."""
        unused = sorted((key for key, one in self._entries.items() if not one.users), key=self._used_s)
        over = len(self._entries) - _SESSIONS_LIMIT + 1
        for place, key in enumerate(unused):
            if place >= over and time.monotonic() - self._used_s(key) < _IDLE_S:
                break
            entry = self._entries.pop(key)
            if entry.session is not None:
                await entry.session.end()

    def _used_s(self, key: tuple[str, str, str]) -> float:
        return self._entries[key].used_s

    async def close(self) -> None:
        """End every session; their programs end with their sandboxes."""
        entries, self._entries = list(self._entries.values()), {}
        await asyncio.gather(*(entry.session.end() for entry in entries if entry.session is not None))


def _specs(tools: Sequence[Tool]) -> Sequence[ToolSpec]:
    return Toolbox(tools).specs()


def _absent(name: str, why: str) -> Tool:
    """Return a tool that says why it is not there: its calls are judged and recorded all the same."""

    async def run(_: JsonArguments, __: ToolContext) -> ToolResult:
        return ToolResult.error(why)

    return Tool(name, why, arguments_of('{"type": "object"}'), run)


def _whose(place: Place, server: Server) -> dict[str, str]:
    return {"tenant": place.tenant.name, "agent": place.agent, "server": server.name}


def _kinds(error: BaseException | None) -> str:
    """Return the classes of an error and of its causes: their texts hold what the server wrote, which no log does."""
    kinds: list[str] = []
    while error is not None and len(kinds) < _CAUSES_LIMIT:
        kinds.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    return ", ".join(kinds)


def _check_pinned(pinned: Definition, now: Definitions) -> None:
    found = now.tools.get(pinned.name)
    if found is None:
        raise Unusable(f"it no longer has the tool {pinned.name}, or shows it in a form that is not offered")
    if found.digest != pinned.digest:
        raise Unusable(
            f"its tool {pinned.name} is not what the operator accepted: the name, the description or the schema "
            f"has changed. The call was not made; ask the operator to look at `airlock mcp pins list`"
        )
