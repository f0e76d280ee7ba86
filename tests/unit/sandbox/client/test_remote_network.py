"""Tunnels between the gateway and programs of a sandbox, through a real daemon in a plain process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.errors import DaemonLost, InvalidArgument, NotFound
from sandbox.sandbox import Sandbox, SandboxSpec

SPEC = SandboxSpec("tenant", "thread", "any-image")
MIB = 1024 * 1024


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine(root=tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def sandbox(engine: MemoryEngine) -> Sandbox:
    return await engine.create(SPEC)


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def received(tunnel: socket.socket) -> bytes:
    """Read to the end."""
    data = bytearray()
    while piece := await asyncio.get_running_loop().sock_recv(tunnel, MIB):
        data += piece
    return bytes(data)


async def test_a_connection_to_the_proxy_port_becomes_a_tunnel_whose_halves_end_apart(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()
    assert await sandbox.network.open() == port, "it listens already"
    reader, writer = await connect(port)
    with closing(await sandbox.network.accept()) as tunnel:
        writer.write(b"question")
        writer.write_eof()
        assert await received(tunnel) == b"question"
        await asyncio.get_running_loop().sock_sendall(tunnel, b"answer")
        tunnel.shutdown(socket.SHUT_WR)
        assert await reader.read() == b"answer"
    await hang_up(writer)


async def test_bytes_that_come_with_the_connection_are_not_lost(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()
    accepting = asyncio.create_task(sandbox.network.accept())
    _, writer = await connect(port)
    writer.write(b"x" * MIB)
    writer.write_eof()
    with closing(await accepting) as tunnel:
        assert await received(tunnel) == b"x" * MIB
    await hang_up(writer)


async def test_a_side_that_does_not_read_holds_up_the_other_one(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()
    client = socket.create_connection(("127.0.0.1", port))
    sent = threading.Event()

    def send() -> None:
        client.sendall(b"y" * 64 * MIB)
        sent.set()
        client.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    with closing(await sandbox.network.accept()) as tunnel:
        first = len(await asyncio.get_running_loop().sock_recv(tunnel, 1))
        await asyncio.sleep(0.3)
        assert not sent.is_set()
        assert first + len(await received(tunnel)) == 64 * MIB
    await asyncio.to_thread(sender.join)
    client.close()


async def test_the_last_that_waits_gets_the_next_connection(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()
    waiting = []
    for _ in range(3):
        waiting.append(asyncio.create_task(sandbox.network.accept()))
        await asyncio.sleep(0.1)
    _, writer = await connect(port)
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waiting[2]}
    waiting[1].cancel()
    await asyncio.gather(waiting[1], return_exceptions=True)
    _, second = await connect(port)
    with closing(await waiting[0]), closing(waiting[2].result()):
        assert pending
    await hang_up(writer)
    await hang_up(second)


async def test_a_port_that_is_closed_accepts_nothing_and_keeps_what_is_open(sandbox: Sandbox) -> None:
    with pytest.raises(NotFound, match="not open"):
        await sandbox.network.accept()
    port = await sandbox.network.open()
    reader, writer = await connect(port)
    with closing(await sandbox.network.accept()) as tunnel:
        waiting = asyncio.create_task(sandbox.network.accept())
        await asyncio.sleep(0.1)
        await sandbox.network.close()
        with pytest.raises(NotFound, match="not open"):
            await waiting
        with pytest.raises(ConnectionRefusedError):
            await connect(port)
        await asyncio.get_running_loop().sock_sendall(tunnel, b"still here")
        assert await reader.readexactly(10) == b"still here"
    await hang_up(writer)
    assert await sandbox.network.open() > 0
    assert sandbox.alive


async def test_either_side_that_closes_ends_the_tunnel(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()
    reader, writer = await connect(port)
    (await sandbox.network.accept()).close()
    assert await reader.read() == b""
    # The client keeps its half open, and costs the daemon nothing then.
    await hang_up(writer)
    _, writer = await connect(port)
    with closing(await sandbox.network.accept()) as tunnel:
        writer.transport.abort()
        with suppress(ConnectionResetError):
            assert await received(tunnel) == b""
    assert sandbox.alive


async def test_many_tunnels_are_open_at_once(sandbox: Sandbox) -> None:
    port = await sandbox.network.open()

    async def echo() -> None:
        with closing(await sandbox.network.accept()) as tunnel:
            await asyncio.get_running_loop().sock_sendall(tunnel, await received(tunnel))

    async def ask(number: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"%d" % number)
        await asyncio.sleep(0.2)
        writer.write_eof()
        assert await reader.read() == b"%d" % number
        await hang_up(writer)

    await asyncio.gather(*(echo() for _ in range(200)), *(ask(number) for number in range(200)))
    health = await sandbox.health()
    assert health.calls == 1, "a tunnel is no call"


async def test_the_gateway_reaches_a_port_that_tool_code_listens_on(sandbox: Sandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.read())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        with closing(await sandbox.network.connect(server.sockets[0].getsockname()[1])) as tunnel:
            await asyncio.get_running_loop().sock_sendall(tunnel, b"hello")
            tunnel.shutdown(socket.SHUT_WR)
            assert await received(tunnel) == b"you said hello"


async def test_a_port_that_cannot_be_reached_is_said(sandbox: Sandbox) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = unused.getsockname()[1]
    with pytest.raises(NotFound, match=f"nothing listens on port {free}"):
        await sandbox.network.connect(free)
    for port in (0, 65_536):
        with pytest.raises(InvalidArgument, match="give 1 to"):
            await sandbox.network.connect(port)
    proxy = await sandbox.network.open()
    with pytest.raises(InvalidArgument, match="own proxy"):
        await sandbox.network.connect(proxy)
    assert sandbox.alive


async def test_a_sandbox_that_is_removed_ends_those_who_wait(engine: MemoryEngine, sandbox: Sandbox) -> None:
    await sandbox.network.open()
    waiting = asyncio.create_task(sandbox.network.accept())
    await asyncio.sleep(0.1)
    await engine.remove(sandbox.id)
    with pytest.raises(DaemonLost):
        await waiting
    assert not sandbox.alive
