"""Connections that the gateway itself makes on behalf of a thread's agent, as to the agent's MCP servers.

They pass the door of the thread's sandbox, so they are judged, resolved, limited, metered and recorded as those of tool
code are, and credentials are put in there. Who makes them is known: each is attributed to its own call and to no other,
and no connection of tool code to it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from gateway.network.credentials import Caller
from gateway.network.decision import CallUnderWay, ConnectionPolicy, Target
from gateway.network.opening import Opening
from gateway.network.outgoing import Exits, Outgoing


class OwnDoor(Protocol):
    """The door that these connections pass."""

    @property
    def policy(self) -> ConnectionPolicy: ...
    @property
    def opening(self) -> Opening: ...
    def admit(self, one: Outgoing, task: asyncio.Task[None] | None) -> Outgoing:
        """Count a connection from now on. Over a limit it is refused already."""

    def opened(self, one: Outgoing) -> None: ...
    def ended(self, one: Outgoing) -> None: ...
    def begin(self, connection: socket.socket, exits: Exits) -> None:
        """Serve a connection to its end."""


@dataclass(frozen=True, eq=False)
class OwnConnections:
    """Satisfies outgoing.Exits, for the connections of one call."""

    door: OwnDoor
    call: CallUnderWay

    def connect(self) -> socket.socket:
        """Return a connection to the door, as tool code has one to its proxy; the caller closes it."""
        ours, served = socket.socketpair()
        ours.setblocking(False)
        served.setblocking(False)
        self.door.begin(served, self)
        return ours

    async def credential(self, name: str) -> tuple[str, str] | None:
        """Return the header and the placeholder of a credential; None where it is not for this call."""
        opening = self.opening
        credentials = await asyncio.to_thread(getattr, opening, "credentials")  # made on first use, in 100 ms
        found: tuple[str, str] | None = credentials.placeholder(name, Caller(self.call.agent, self.call.tool))
        return found

    async def trust(self) -> ssl.SSLContext:
        """Return what checks servers: by the authorities of opened connections, and by the tenant's own."""
        return await asyncio.to_thread(self._trust)

    def _trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        known = self.opening.trust().http1.get_ca_certs(binary_form=True)
        if known:
            context.load_verify_locations(cadata=b"".join(known))
        if self.opening.is_needed(self.door.policy.policy()):
            context.load_verify_locations(cadata=self.opening.authority.ca_pem)
        return context

    # --- Exits ---

    @property
    def opening(self) -> Opening:
        return self.door.opening

    def request(self, target: Target) -> Outgoing:
        return Outgoing(target, self.call, self.door.policy, self.door.opened)

    def outgoing(self, target: Target, task: asyncio.Task[None] | None) -> Outgoing:
        return self.door.admit(self.request(target), task)

    def ended(self, one: Outgoing) -> None:
        self.door.ended(one)
