"""Writing to the standard input of a background process, for as long as somebody is willing to wait for room."""

from __future__ import annotations

import asyncio
import os
import select

_WRITE_BYTES = 64 * 1024


class ProcessInput:
    """The writing end of a pipe, or a terminal, which does not block. Writers take turns."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None

    def is_open(self) -> bool:
        """Return whether somebody holds the other end."""
        if self._fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fd, 0)
        return not poller.poll(0)  # an error or a hang-up is told without being asked for

    async def write(self, data: bytes, wait_s: float) -> int:
        """Write `data`; return how many bytes were taken when the time was over or nobody could read any more."""
        taken = 0

        async def write_all() -> None:
            nonlocal taken
            async with self._turn:
                while taken < len(data) and self._fd >= 0:
                    try:
                        taken += os.write(self._fd, memoryview(data)[taken : taken + _WRITE_BYTES])
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
        return taken

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
