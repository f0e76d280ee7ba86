"""Where an agent's servers are used: a thread with its sandbox, and the session that its calls share."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.config.mcp_settings import McpServerSettings
from gateway.network.door import Doors, ThreadNetwork
from gateway.network.own_connections import OwnConnections
from gateway.storage.entities import Thread
from gateway.storage.mcp_pin_store import McpPins
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.thread_sandbox import ThreadSandbox

if TYPE_CHECKING:
    from gateway.mcp_servers.session import Session


_PROGRAM_ID = re.compile(r"mcp-[a-z0-9_-]{1,32}-[0-9a-f]{8}")
RESERVED_IDS = "ids like mcp-NAME-01234567 are reserved for MCP servers"


def program_id(server: str, digest: str) -> str:
    """Return the id of the process of a server that is a program; `digest` is of how it starts."""
    return f"mcp-{server}-{digest[:8]}"


def is_program(process_id: str) -> bool:
    """Return whether a process id is one of a server that is a program."""
    return _PROGRAM_ID.fullmatch(process_id) is not None


class Unusable(Exception):
    """A server cannot be used; str() says why."""


@dataclass(frozen=True)
class Server:
    """A server of an agent, by its name."""

    name: str
    settings: McpServerSettings


@dataclass(frozen=True)
class Place:
    """Where an agent's servers are used. `judged_as` is the agent whose rules and credentials apply, "" for none."""

    tenant: Tenant
    thread: Thread
    sandbox: ThreadSandbox
    agent: str
    judged_as: str
    run_id: str

    def network(self, doors: Doors) -> ThreadNetwork:
        return ThreadNetwork(doors, self.thread, lambda: self.tenant.policy, self.run_id, self.judged_as)

    def servers(self) -> list[Server]:
        """Return the agent's servers."""
        agent = self.tenant.agents.get(self.agent)
        return [] if agent is None else [Server(name, settings) for name, settings in agent.mcp.servers.items()]


@dataclass(eq=False)
class Entry:
    """A session, and who uses it. `own` are the connections of the calls under way, the newest last."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: Session | None = None
    own: list[OwnConnections] = field(default_factory=list)
    users: int = 0
    used_s: float = 0.0
    noticed: McpPins | None = None
