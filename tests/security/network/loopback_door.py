"""A door without a sandbox: its daemon is a queue of socket pairs, all else is real. Names lead where a test says."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

import gateway.network.outgoing
from gateway.network.addresses import resolve
from gateway.network.connection_records import ConnectionRecords
from gateway.network.decision import CallUnderWay, ConnectionPolicy
from gateway.network.door import Door
from gateway.network.http_client import Streams
from gateway.network.opening import Opening, Trust
from gateway.policy.judge import Policy
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from tests.unit.gateway.network.relayed import Handler, Server
from tests.unit.gateway.policy.test_conditions import document

WAIT_S = 20
"""Longer than anything takes that works."""
LOOPBACK = {"id": "loopback", "tools": ["connect"], "hosts": ["127.0.0.0/8"]}
"""The operator's: names may lead to servers of the tests."""
CALL = CallUnderWay("call_1", "", "agent", "execute", "curl")


def allow(*hosts: str, **more: Any) -> dict[str, Any]:
    return {"tools": ["connect"], **({"hosts": list(hosts)} if hosts else {}), **more}


def policy(*rules: Mapping[str, Any], operator: Iterable[Mapping[str, Any]] = (LOOPBACK,), **network: Any) -> Policy:
    """A tenant's rules below an operator's; `network` are the limits."""
    return Policy(document(*rules, network=network), document(*operator))


class Records(list[AuditEntry]):
    """Stands in for the database: what is over, and in `open` what is not, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, AuditEntry] = {}

    async def write(self, opened: Mapping[str, AuditEntry], ended: Sequence[tuple[str, AuditEntry | None]]) -> None:
        self.open.update(opened)
        for id_, entry in ended:
            assert not id_ or self.open.pop(id_)
            self += [] if entry is None else [entry]

    def seen(self) -> list[tuple[str, str, str]]:
        """Return verdict, rule and outcome of each."""
        return [(one.verdict, one.rule, one.outcome) for one in self]


@dataclass
class QueuedNetwork:
    """Satisfies sandbox.protocols.Network as far as a door asks: whoever connects is in the queue."""

    queue: asyncio.Queue[socket.socket] = field(default_factory=asyncio.Queue)

    async def open(self) -> int:
        return 3128

    async def close(self) -> None:
        """Nothing to stop."""

    async def accept(self) -> socket.socket:
        return await self.queue.get()


@dataclass
class QueuedSandbox:
    """Satisfies sandbox.Sandbox as far as a door asks."""

    network: QueuedNetwork = field(default_factory=QueuedNetwork)
    id: str = "sandbox"
    alive: bool = True


@dataclass
class LoopbackDoor:
    """`policy` is the one in force: set another at any time. `names`: the addresses of each look-up of a name."""

    policy: Policy
    records: Records
    names: dict[str, list[list[str]]]
    sandbox: QueuedSandbox = field(default_factory=QueuedSandbox)
    lookups: list[str] = field(default_factory=list)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    door: Door = field(init=False)

    def start(self, approvals: ApprovalStore, thread: Thread) -> None:
        connections = ConnectionPolicy(thread, lambda: self.policy, approvals)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        opening = Opening(thread.tenant, (), b"secret", lambda: Trust(context, context))
        records = ConnectionRecords(cast(Any, self.records))
        self.door = Door(cast(Any, self.sandbox), connections, records, opening, calls=[CALL])

    async def lookup(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def serve(self, handle: Handler, *names: str, tls: Any = None) -> Server:
        """Run a server on loopback, which these names lead to; it ends with the test."""
        server = Server(handle)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        self.stack.callback(listening.close)
        server.port = listening.sockets[0].getsockname()[1]
        self.names.update({name: [["127.0.0.1"]] for name in names})
        return server

    async def connect(self) -> Streams:
        """Connect to the proxy port; what is open at the end of the test is closed."""
        ours, its = socket.socketpair()
        for one in (ours, its):
            one.setblocking(False)
        self.sandbox.network.queue.put_nowait(its)
        streams = await asyncio.open_connection(sock=ours)
        self.stack.callback(_abort, streams[1])
        return streams

    async def ask(self, request: bytes) -> bytes:
        """Send bytes and return all that comes; only for what is closed."""
        reader, writer = await self.connect()
        writer.write(request)
        return await asyncio.wait_for(reader.read(), WAIT_S)

    async def tunnel(self, host: str, port: int) -> Streams:
        """Return an open tunnel, asked for by CONNECT."""
        reader, writer = await self.connect()
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert said.startswith(b"HTTP/1.1 200"), said + await reader.read()
        return reader, writer

    async def recorded(self, count: int) -> list[tuple[str, str, str]]:
        """Return what is on record, once there are that many."""
        async with asyncio.timeout(WAIT_S):
            while len(self.records) < count:
                await asyncio.sleep(0.005)
        return self.records.seen()


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def connect(host: str, port: int) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def get(host: str, port: int, path: str = "/", *headers: str, method: str = "GET") -> bytes:
    """Return a request in absolute form, after which the connection is closed."""
    more = "".join(f"{line}\r\n" for line in headers)
    return (
        f"{method} http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n{more}Connection: close\r\n\r\n"
    ).encode()


def socks(host: str, port: int) -> bytes:
    name = host.encode("utf-8", "surrogateescape")
    return b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body(answer: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return said


@asynccontextmanager
async def loopback_door(
    approvals: ApprovalStore, thread: Thread, patch: pytest.MonkeyPatch
) -> AsyncIterator[LoopbackDoor]:
    made = LoopbackDoor(policy(allow("allowed.test")), Records(), {})

    async def resolved(host: str, port: int, **more: Any) -> Sequence[str]:
        return await resolve(host, port, lookup=made.lookup, **more)

    patch.setattr(gateway.network.outgoing, "resolve", resolved)
    made.start(approvals, thread)
    await made.door.open()
    async with made.stack:
        yield made
        await made.door.close()
        await made.door.records.close()
    while not made.sandbox.network.queue.empty():
        made.sandbox.network.queue.get_nowait().close()
    assert not made.door._open, "a connection is still counted"
    assert not made.records.open, "a connection is still open on record"
    assert not made.door.policy.waiting, "a connection still has a place among the waiting"


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes up to the end; a reset is an end, too."""
    data = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(65536), WAIT_S):
            data += piece
    return data


async def echo_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that sends back what it gets, then ends."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
