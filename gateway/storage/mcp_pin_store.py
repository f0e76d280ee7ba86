"""Which tools of MCP servers were accepted, and which were seen last: a row for each server of an agent.

A row is written when a server shows other tools than before, and when an operator accepts or removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, delete, select, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.insertion import insert_new
from gateway.storage.queries import Queries, mapped, transaction
from gateway.storage.tables import mcp_pins

_C = mcp_pins.c
LEFT_OUT_LIMIT_CHARS = 32 * 1024
FIRST_USE = "first use"
"""Who accepted the tools of a server whose settings say so."""


@dataclass(frozen=True)
class McpPins:
    """The tools of a server, as JSON, `pinned` and as `seen` last; "" and no digest for none.

    `left_out` says, one a line, which tools cannot be offered at all.
    """

    tenant: str
    agent: str
    server: str
    pinned: str = ""
    pinned_digest: str = ""
    pinned_by: str = ""
    pinned_us: int = 0
    seen: str = ""
    seen_digest: str = ""
    seen_us: int = 0
    left_out: str = ""

    @property
    def status(self) -> str:
        """Return new, pinned or changed."""
        if not self.pinned_digest:
            return "new"
        return "pinned" if self.pinned_digest == self.seen_digest else "changed"


class McpPinStore(Queries):
    """Reads and writes pins."""

    async def of(self, tenant: str, agent: str = "") -> Sequence[McpPins]:
        """Return the pins of a tenant, or of one of its agents, in the order of their names."""
        query = select(mcp_pins).where(_C.tenant == tenant).order_by(_C.agent, _C.server)
        return await self._all(McpPins, query.where(_C.agent == agent) if agent else query)

    @transaction
    def saw(self, connection: Connection, found: McpPins, *, first_use: bool) -> McpPins:
        """Store what a server shows (`seen`, `left_out`); with `first_use` it is accepted if nothing ever was."""
        # Another gateway may see it for the first time just now.
        begin = vars(McpPins(found.tenant, found.agent, found.server))
        is_new = (
            connection.execute(insert_new(mcp_pins, connection.dialect.name).returning(_C.server), begin).first()
            is not None
        )
        before = self._locked(connection, found) or found
        pins = replace(before, seen=found.seen, seen_digest=found.seen_digest, seen_us=self.clock())
        pins = replace(pins, left_out=found.left_out[:LEFT_OUT_LIMIT_CHARS])
        if first_use and is_new:
            pins = self._pinned(connection, pins, FIRST_USE)
        connection.execute(update(mcp_pins).where(_same(pins)).values(**vars(pins)))
        return pins

    @transaction
    def accept(self, connection: Connection, found: McpPins, by: str) -> McpPins | None:
        """Pin what was seen last, if its digest is `found.seen_digest`; return the row then, None without one."""
        before = self._locked(connection, found)
        if before is None or before.seen_digest != found.seen_digest:
            return before
        pins = self._pinned(connection, before, by)
        connection.execute(update(mcp_pins).where(_same(pins)).values(**vars(pins)))
        return pins

    @transaction
    def remove(self, connection: Connection, found: McpPins, by: str) -> McpPins | None:
        """Remove the row; return it as it was, None without one."""
        before = self._locked(connection, found)
        if before is not None:
            connection.execute(delete(mcp_pins).where(_same(before)))
            self.audit.append(connection, _entry("mcp_pins_removed", before, by))
        return before

    def _pinned(self, connection: Connection, pins: McpPins, by: str) -> McpPins:
        self.audit.append(connection, _entry("mcp_pins_accepted", pins, by))
        return replace(
            pins, pinned=pins.seen, pinned_digest=pins.seen_digest, pinned_by=by[:256], pinned_us=self.clock()
        )

    def _locked(self, connection: Connection, wanted: McpPins) -> McpPins | None:
        row = connection.execute(select(mcp_pins).where(_same(wanted)).with_for_update()).first()
        return None if row is None else mapped(McpPins, row)


def _same(pins: McpPins) -> ColumnElement[bool]:
    return (_C.tenant == pins.tenant) & (_C.agent == pins.agent) & (_C.server == pins.server)


def _entry(kind: str, pins: McpPins, by: str) -> AuditEntry:
    details = {"agent": pins.agent, "server": pins.server, "digest": pins.seen_digest}
    return AuditEntry(pins.tenant, kind, actor=by, details=details)
