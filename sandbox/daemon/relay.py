"""Relays bytes between two connected sockets, in both directions, until both have ended.

An idle relay keeps no buffer: what is received goes on at once, and only what the other side does not take is kept.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing

SEND_BUFFER_BYTES = 1024 * 1024
"""Of a tunnel's Unix socket, at both ends: the default of 208 KiB would split a piece into several round trips."""

# One for all relays of an event loop: it holds nothing between two receives.
_scratch = memoryview(bytearray(256 * 1024))

OnBytes = Callable[[memoryview], None]
"""Called with what was received, before it is sent, and with nothing at the end; an exception ends the relay."""


def unseen(_piece: memoryview) -> None:
    """Take no notice."""


async def relay(one: socket.socket, other: socket.socket, sent: OnBytes = unseen, back: OnBytes = unseen) -> None:
    """Relay from `one` to `other`, seen by `sent`, and back; return when both directions have ended.

    Raises OSError when a connection breaks, and what `sent` and `back` raise. The caller closes both sockets, which
    must not block.
    """
    with closing(Direction(one, other, sent)) as forward, closing(Direction(other, one, back)) as backward:
        await asyncio.gather(forward.ended, backward.ended)


class Direction:
    """Relays from `source` until it ends, and ends writing to `target` then; close it before both sockets.

    `ended` is done then, or has what relay() raises. It works by callbacks: a task would be woken for each piece.
    """

    def __init__(self, source: socket.socket, target: socket.socket, moved: OnBytes = unseen) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._target, self._moved = source, target, moved
        self._left = memoryview(b"")
        self._closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        # By their numbers: for a socket that it does not know yet, the selector would put the socket's name in words.
        self._reads, self._writes = source.fileno(), target.fileno()
        self._loop.add_reader(self._reads, self._receive)

    def close(self) -> None:
        """Stop, and drop what is not sent."""
        if not self._closed:
            self._closed = True
            if self._left:
                self._loop.remove_writer(self._writes)
            else:
                self._loop.remove_reader(self._reads)

    def _receive(self) -> None:
        # One piece: a peer that is always ready must not keep the loop from the others.
        try:
            size = self._source.recv_into(_scratch)
            piece = _scratch[:size]
            self._moved(piece)
            if not piece:
                self._target.shutdown(socket.SHUT_WR)
                self._end()
                return
            sent = self._sent(piece)
            if sent < size:
                self._left = memoryview(bytes(piece[sent:]))
                self._loop.remove_reader(self._reads)
                self._loop.add_writer(self._writes, self._send_left)
        except BlockingIOError:
            pass
        except Exception as error:
            self._end(error)

    def _send_left(self) -> None:
        try:
            self._left = self._left[self._sent(self._left) :]
        except Exception as error:
            self._end(error)
            return
        if not self._left:
            self._loop.remove_writer(self._writes)
            self._loop.add_reader(self._reads, self._receive)

    def _sent(self, data: memoryview) -> int:
        try:
            return self._target.send(data)
        except BlockingIOError:
            return 0

    def _end(self, error: Exception | None = None) -> None:
        self.close()
        if self.ended.done():  # cancelled
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # or asyncio logs it where the other direction's was raised before


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
