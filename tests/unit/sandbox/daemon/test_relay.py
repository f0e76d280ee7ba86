"""Relays: every byte in order, half-close, back-pressure, and nothing of one relay in another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from sandbox.daemon.relay import relay

LARGE = os.urandom(8 * 1024 * 1024)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, ...]]:
    """Yield a client, the two ends that are relayed, and a server."""
    with contextlib.ExitStack() as stack:
        yield pairs(stack)


def pairs(stack: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    made = (*socket.socketpair(), *socket.socketpair())
    for one in made:
        stack.enter_context(one)
        one.setblocking(False)
    return made


async def read_all(connection: socket.socket) -> bytes:
    found = bytearray()
    while piece := await asyncio.get_running_loop().sock_recv(connection, 64 * 1024):
        found += piece
    return bytes(found)


async def send_all(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)
    connection.shutdown(socket.SHUT_WR)


async def relay_beside(data: bytes) -> None:
    """Relay on other sockets, and check what arrives."""
    with contextlib.ExitStack() as stack:
        client, one, other, server = pairs(stack)
        relaying = asyncio.create_task(relay(one, other))
        await send_all(client, data)
        assert await read_all(server) == data
        await send_all(server, b"")
        await relaying


class Counted:
    """Counts bytes; `some` is set with the first."""

    def __init__(self) -> None:
        self.size = 0
        self.some = asyncio.Event()

    def __call__(self, piece: memoryview) -> None:
        self.size += len(piece)
        self.some.set()


async def test_both_ways_arrive_whole_and_end_by_themselves(ends: tuple[socket.socket, ...]) -> None:
    client, one, other, server = ends
    sent, back = Counted(), Counted()
    relaying = asyncio.create_task(relay(one, other, sent, back))
    await send_all(client, b"request")
    assert await read_all(server) == b"request"
    assert not relaying.done()
    receiving = asyncio.create_task(read_all(client))
    await send_all(server, LARGE)
    assert await receiving == LARGE
    await relaying
    assert (sent.size, back.size) == (len(b"request"), len(LARGE))


async def test_a_peer_that_reads_nothing_stops_the_sender_and_no_other_relay(ends: tuple[socket.socket, ...]) -> None:
    client, one, other, server = ends
    sent = Counted()
    relaying = asyncio.create_task(relay(one, other, sent))
    sending = asyncio.create_task(send_all(client, LARGE))
    await sent.some.wait()
    await relay_beside(b"beside")
    assert not sending.done()
    assert sent.size < len(LARGE) // 2
    assert await read_all(server) == LARGE
    await sending
    await send_all(server, b"")
    await relaying


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_relay_that_was_cut_watches_no_socket_and_its_bytes_reach_no_other(
    ends: tuple[socket.socket, ...], *, stalls: bool
) -> None:
    client, one, other, server = ends
    other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = Counted()
    relaying = asyncio.create_task(relay(one, other, sent))
    client.send(LARGE[: 100_000 if stalls else 100])
    await sent.some.wait()
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    loop = asyncio.get_running_loop()
    assert not any(remove(end) for remove in (loop.remove_reader, loop.remove_writer) for end in (one, other))
    assert (len(server.recv(100_000)) < sent.size) == stalls
    await relay_beside(b"mine")


async def test_a_counter_that_raises_ends_the_relay_and_its_piece_is_dropped(ends: tuple[socket.socket, ...]) -> None:
    client, one, other, server = ends

    class Enough(Exception):
        pass

    def limited(_piece: memoryview) -> None:
        raise Enough

    relaying = asyncio.create_task(relay(one, other, limited))
    client.send(b"too much")
    with pytest.raises(Enough):
        await relaying
    with pytest.raises(BlockingIOError):
        server.recv(1)


async def test_a_target_that_is_gone_ends_the_relay(ends: tuple[socket.socket, ...]) -> None:
    client, one, other, server = ends
    relaying = asyncio.create_task(relay(one, other))
    server.close()
    client.send(b"to no one")
    with pytest.raises(BrokenPipeError):
        await relaying
