"""Writing to the standard input of a background process, for as long as somebody is willing to wait for room.

A write whose answer was lost can be made again: by its offset, or by an id, it is told what it had taken.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import OrderedDict

from sandbox.daemon.failures import Fault, invalid_argument
from sandbox.v1 import channel_pb2 as wire

_WRITE_BYTES = 64 * 1024
_REMEMBERED_WRITES = 64


class _Write:
    """A write and how many of its bytes were taken, by all its attempts."""

    __slots__ = ("size_bytes", "taken_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0


class ProcessInput:
    """The writing end of a pipe, or a terminal, which does not block. Writers take turns.

    `taken_bytes` is what all of them have had taken.
    """

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._writes: OrderedDict[str, _Write] = OrderedDict()
        self.taken_bytes = 0

    def is_open(self) -> bool:
        """Return whether somebody holds the other end."""
        if self._fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fd, 0)
        return not poller.poll(0)  # an error or a hang-up is told without being asked for

    async def write(self, data: bytes, wait_s: float, *, offset: int | None = None, request_id: str = "") -> int:
        """Write `data`; return how many bytes were taken when the time was over or nobody could read any more.

        What an earlier attempt had taken, with the same id or by `offset`, counts and is not written again. Fault when
        `offset` is past what was taken, or the id was another write's.
        """
        write = _Write(len(data))

        async def write_all() -> None:
            nonlocal write
            async with self._turn:  # an earlier attempt may be under way
                write = self._known(write, offset, request_id)
                while write.taken_bytes < len(data) and self._fd >= 0:
                    at = write.taken_bytes
                    try:
                        size = os.write(self._fd, memoryview(data)[at : at + _WRITE_BYTES])
                        write.taken_bytes += size
                        self.taken_bytes += size
                    except BlockingIOError:
                        await self._wait_for_room()
                    except OSError:
                        self.close()

        # Not asyncio.timeout(): it would have to be loaded first, and under attack that may be impossible.
        writing = self._loop.create_task(write_all())
        try:
            await asyncio.wait([writing], timeout=wait_s)
        finally:
            writing.cancel()
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.result()
        return write.taken_bytes

    def _known(self, write: _Write, offset: int | None, request_id: str) -> _Write:
        """Return the write that this is another attempt of, or this one, with what of it was taken already."""
        earlier = self._writes.get(request_id)
        if earlier is not None:
            if earlier.size_bytes != write.size_bytes:
                raise invalid_argument("request_id was given to another write to this process; take a new one for each")
            return earlier
        if offset is not None:
            if offset > self.taken_bytes:
                raise Fault(
                    wire.FAILURE_KIND_INPUT_GAP,
                    f"offset is {offset}, and stdin has taken {self.taken_bytes} bytes; go on from there",
                    taken_bytes=self.taken_bytes,
                )
            write.taken_bytes = min(self.taken_bytes - offset, write.size_bytes)
        if request_id:
            self._writes[request_id] = write
            if len(self._writes) > _REMEMBERED_WRITES:
                self._writes.popitem(last=False)
        return write

    async def _wait_for_room(self) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(self._fd, self._has_room)
        try:
            await self._room
        finally:
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def _has_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def let_go(self) -> int:
        """Stop writing, and leave the descriptor to the caller; -1 when it is gone already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_writer(fd)
        self._has_room()
        return fd

    def close(self) -> None:
        """Close it: the program reads the end of its input."""
        fd = self.let_go()
        if fd >= 0:
            os.close(fd)
