"""Pins, the accepted definitions of tools: operators accept them, and sessions compare what servers show with them.

A model is shown what was accepted and nothing else. A tool whose definition has changed is not called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.config.config import Config
from gateway.errors import NotFound, PinsChanged
from gateway.mcp_servers.definitions import Definition, Definitions
from gateway.storage.mcp_pin_store import McpPins, McpPinStore


@dataclass(frozen=True)
class PinnedTool:
    """A tool of a server, and what became of it: pinned, new, changed, or gone."""

    definition: Definition
    status: str


@dataclass(frozen=True)
class PinnedServer:
    """A server of an agent, with what was seen of it. `digest` is what accept() is given."""

    pins: McpPins
    tools: Sequence[PinnedTool]

    @classmethod
    def of(cls, pins: McpPins) -> PinnedServer:
        pinned, seen = Definitions.from_json(pins.pinned).tools, Definitions.from_json(pins.seen).tools
        tools = [PinnedTool(tool, _status(pinned.get(name), tool)) for name, tool in seen.items()]
        tools += [PinnedTool(tool, "gone") for name, tool in pinned.items() if name not in seen]
        return cls(pins, tools)


def _status(pinned: Definition | None, seen: Definition) -> str:
    if pinned is None:
        return "new"
    return "pinned" if pinned.digest == seen.digest else "changed"


@dataclass(frozen=True)
class PinAdmin:
    """What operators do with pins."""

    config: Config
    store: McpPinStore

    async def list(self, tenant: str, agent: str = "") -> Sequence[PinnedServer]:
        """Return what was seen of a tenant's servers. NotFound for a tenant that is not configured."""
        self._check(tenant)
        return [PinnedServer.of(pins) for pins in await self.store.of(tenant, agent)]

    async def accept(self, wanted: McpPins, by: str) -> PinnedServer:
        """Accept the tools that were seen with a digest. NotFound, and PinsChanged if others were seen since."""
        self._check(wanted.tenant)
        found = await self.store.accept(wanted, by)
        if found is None:
            raise _no_server(wanted)
        if found.seen_digest != wanted.seen_digest:
            raise PinsChanged(
                f"server {wanted.server} now shows other tools than those with digest {wanted.seen_digest[:12]}: list "
                "them again, and accept what it shows now",
                digest=found.seen_digest,
            )
        return PinnedServer.of(found)

    async def remove(self, wanted: McpPins, by: str) -> PinnedServer:
        """Forget what was accepted and seen of a server: its tools are offered to no model then. NotFound."""
        self._check(wanted.tenant)
        found = await self.store.remove(wanted, by)
        if found is None:
            raise _no_server(wanted)
        return PinnedServer.of(replace(found, pinned="", pinned_digest=""))

    def _check(self, tenant: str) -> None:
        if tenant not in self.config.tenants:
            raise NotFound(f"tenant {tenant[:64]!r} is not configured")


def _no_server(wanted: McpPins) -> NotFound:
    return NotFound(
        f"the gateway has not seen an MCP server {wanted.server[:64]!r} of agent {wanted.agent[:64]!r}: the first "
        "run of the agent, or the first call of one of its tools, starts it"
    )
