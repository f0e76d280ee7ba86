"""How sessions begin: a program is started in the thread's sandbox, or an address is connected to through its door.

A program is started like a background process of a service: the policy judges its command line, the thread's file rules
confine it, and the journal and the audit record it.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from agent.tool_call import CallContext
from gateway.mcp_servers.door_transport import door_transport
from gateway.mcp_servers.places import Entry, Place, Server, Unusable
from gateway.mcp_servers.process_transport import ServerProcess, process_transport
from gateway.mcp_servers.session import ServerFailed, Session
from gateway.network.door import Doors, no_network
from gateway.tool_calls.program_calls import TOOL, ProcessStart, Program, start_arguments
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from sandbox.errors import NotFound
from sandbox.protocols import ProcessSpec


@dataclass(frozen=True)
class Connecting:
    """Begins sessions."""

    tool_calls: ToolCalls
    doors: Doors | None
    failures = ServerFailed

    async def enter(
        self, stack: AsyncExitStack, place: Place, server: Server, entry: Entry, context: CallContext | None
    ) -> None:
        """Lease the sandbox, and let the server connect for this call as far as the policy allows. Raises Unusable."""
        sandbox = await stack.enter_async_context(place.sandbox.leased())
        what = f"{server.name}/*"
        if server.settings.command is not None:
            network = no_network if self.doors is None else place.network(self.doors).entered
            await stack.enter_async_context(network(sandbox, context, what))
            return
        own = None if self.doors is None else await place.network(self.doors).own(sandbox, context, what)
        if own is None:
            raise Unusable(
                "the policy lets nothing connect; ask the operator for a rule of connect about "
                f"{server.settings.url}, such as {{tools: [connect], hosts: [...], effect: allow, ...}}"
            )
        entry.own.append(own)
        stack.callback(entry.own.remove, own)

    async def started(self, place: Place, server: Server, entry: Entry) -> Session:
        """Return a session that has listed the server's tools. Raises Unusable, SandboxError and AirlockError."""
        try:
            if server.settings.command is not None:
                return await self._of_program(place, server, server.settings.command)
            return await self._of_address(place, server, entry, server.settings.url or "")
        except ServerFailed as error:
            raise Unusable(str(error)) from error

    async def _of_program(self, place: Place, server: Server, argv: tuple[str, ...]) -> Session:
        settings = server.settings
        # Sessions of the same name are another's if the agent, or how it starts, is another.
        digest = hashlib.sha256(f"{place.judged_as} {settings.model_dump_json()}".encode()).hexdigest()
        process_id = f"mcp-{server.name}-{digest[:8]}"
        with suppress(NotFound):  # that of an earlier session, which cannot be continued
            await place.sandbox.remove_process(process_id)
        program = Program(argv, settings.cwd, settings.env)
        spec = ProcessSpec(process_id, program.argv_bytes(), env=program.env, cwd=program.cwd, stdin=True)
        start = ProcessStart(program, spec)
        arguments = start_arguments(program, process_id, terminal=False, stdin=True)
        new = NewCall(place.thread.name, TOOL, arguments, executor=start, agent=place.judged_as)
        # In a task of its own: the call has its own context for what is logged.
        finished = await asyncio.create_task(self.tool_calls.call(place.tenant, new))
        if start.process is None:
            finished.raise_waiting()
            raise Unusable(f"it was not started: {start.error or finished.result.text()}")
        process = ServerProcess(place.sandbox, process_id, start.process.started_ns)
        transport = partial(process_transport, process)
        work = self.tool_calls.heavy_work.of(place.tenant.name)
        session = Session(transport, modern_first=False, is_lost=process.is_lost, why_lost=process.said, work=work)
        await session.start(settings.start_s)
        return session

    async def _of_address(self, place: Place, server: Server, entry: Entry, url: str) -> Session:
        settings, own = server.settings, entry.own[-1]
        headers = dict(settings.headers)
        if settings.credential is not None:
            found = await own.credential(settings.credential)
            if found is None:
                raise Unusable(
                    f"the credential {settings.credential} is not for this server: name the agent in its `agents`, "
                    f"and {server.name}/* in its `tools`, or leave these out"
                )
            headers |= [found]

        def connect() -> socket.socket:
            if not entry.own:
                raise OSError("no call is under way")
            return entry.own[-1].connect()

        transport = partial(door_transport, url, headers, connect, await own.trust())
        session = Session(transport, modern_first=True, work=self.tool_calls.heavy_work.of(place.tenant.name))
        await session.start(settings.start_s)
        return session
