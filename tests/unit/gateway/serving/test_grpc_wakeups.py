"""The socket by which grpc wakes the loop is emptied whenever its reader runs, however much happened before."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

import grpc.aio

from gateway.serving.prefetching_server import drain_wakeups


async def _readers_of_a_server() -> list[Callable[[], None]]:
    """Return what the loop is given to run when a socket of grpc's has something to read."""
    loop = asyncio.get_running_loop()
    readers = []
    add_reader: Any = loop.add_reader

    def add(source: Any, callback: Any, *args: Any) -> None:
        if isinstance(source, socket.socket):
            readers.append(callback)
        add_reader(source, callback, *args)

    cast(Any, loop).add_reader = add
    drain_wakeups(loop)
    server = grpc.aio.server()
    await server.start()
    await server.stop(0)
    return readers


def test_a_server_s_reader_takes_all_that_its_socket_has() -> None:
    """What it is given is run here with a socket of the test's in the place of grpc's."""
    (reader,) = asyncio.run(_readers_of_a_server())
    emptied = cast(Any, reader).func
    source, writer = socket.socketpair()
    source.setblocking(False)
    left = []

    def take_one() -> None:
        """Do what grpc's reader does."""
        with contextlib.suppress(BlockingIOError):
            source.recv(1)
        left.append(_left(source))

    with source, writer:
        for _ in range(200):  # each as grpc's thread writes it
            writer.send(b"1")
        emptied(source, take_one)
        emptied(source, take_one)  # nothing there is no error
    assert left == [0, 0]


def test_other_readers_of_the_loop_are_left_alone() -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        drain_wakeups(loop)
        source, writer = socket.socketpair()
        source.setblocking(False)
        with source, writer:
            read: asyncio.Queue[bytes] = asyncio.Queue()
            loop.add_reader(source, lambda: read.put_nowait(source.recv(10)))
            writer.send(b"theirs")
            try:
                return await asyncio.wait_for(read.get(), 20)
            finally:
                loop.remove_reader(source)

    assert asyncio.run(main()) == b"theirs"


def _left(source: socket.socket) -> int:
    try:
        return len(source.recv(65_536, socket.MSG_PEEK))
    except BlockingIOError:
        return 0
