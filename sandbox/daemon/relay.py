"""Relays bytes between two connected sockets, in both directions, until both have ended.

An idle relay keeps no buffer: what is received goes on at once, and only what the other side does not take is kept.
"""

import asyncio
import socket
from collections.abc import Callable

# One for all relays of an event loop: it holds nothing between two receives.
_scratch = memoryview(bytearray(256 * 1024))

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were received, 0 at the end; an exception ends the relay."""


def uncounted(_size: int) -> None:
    """Count nothing."""


async def relay(one: socket.socket, other: socket.socket, sent: OnBytes = uncounted, back: OnBytes = uncounted) -> None:
    """Relay from `one` to `other`, counted by `sent`, and back; return when both directions have ended.

    Raises OSError when a connection breaks, and what the counters raise. The caller closes both sockets, which must not
    block.
    """
    directions = [
        asyncio.create_task(relay_one_way(one, other, sent)),
        asyncio.create_task(relay_one_way(other, one, back)),
    ]
    try:
        await asyncio.gather(*directions)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def relay_one_way(source: socket.socket, target: socket.socket, moved: OnBytes = uncounted) -> None:
    """Relay until `source` ends, and end writing to `target` then. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            count = source.recv_into(_scratch)
        except BlockingIOError:
            await readable(source)
            continue
        moved(count)
        if not count:
            break
        try:
            done = target.send(_scratch[:count])
        except BlockingIOError:
            done = 0
        if done < count:
            await loop.sock_sendall(target, bytes(_scratch[done:count]))
        else:
            # A peer that is always ready must not keep the loop from the others.
            await asyncio.sleep(0)
    target.shutdown(socket.SHUT_WR)


async def readable(source: socket.socket) -> None:
    """Wait until there is something to receive, or the end. Cancelling the wait loses no byte."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    descriptor = source.fileno()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
