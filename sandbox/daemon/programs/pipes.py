"""Pipes between the server and tool processes, read and written without ever blocking the loop."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections import OrderedDict
from collections.abc import Callable

_READ_BYTES = 256 * 1024
_DEFAULT_PIPE_BYTES = 64 * 1024
_LARGE_PIPE_BYTES = 1024 * 1024
_WRITE_BYTES = 64 * 1024
# As in <asm-generic/ioctls.h>: how many bytes wait. The module termios has it too, and costs an import.
_FIONREAD = 0x541B

# What nobody reads any more is drained this slowly, so that a forgotten `yes &` costs no processor time.
_LINGERING_PAUSE_S = 0.05
_LINGERING_PIPES = 1024

# One buffer for all pipes: each reading is consumed before the next one.
_buffer = bytearray(_READ_BYTES)


class OutputPipe:
    """A pipe a program writes to. `on_data(buffer, size)` is called with each piece; `closed` is done at its end.

    While it is paused nothing is read, so a program that writes more than the pipe holds waits.
    """

    def __init__(self, on_data: Callable[[bytearray, int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd, self.write_fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._on_data = on_data
        self._large = False
        self._paused = False
        self._due_bytes = 0
        self._taken: asyncio.Future[None] | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.pieces = 0
        self._loop.add_reader(self._fd, self._readable)

    def close_write_end(self) -> None:
        """Close this process' copy of the writing end."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _readable(self) -> None:
        try:
            size = os.readv(self._fd, [_buffer])
        except BlockingIOError:
            return
        if not size:
            self.close()
            return
        if size >= _DEFAULT_PIPE_BYTES and not self._large:
            # Only who writes much gets a large pipe: their memory counts against one allowance of the user.
            self._large = True
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)
            except OSError:
                pass  # the allowance is used up; a small pipe works too
        self.pieces += 1
        self._on_data(_buffer, size)
        if self._taken is not None:
            self._due_bytes -= size
            if self._due_bytes <= 0 and not self._taken.done():
                self._taken.set_result(None)

    def pause(self) -> None:
        """Stop reading."""
        if self._fd >= 0 and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read on."""
        if self._fd >= 0 and self._paused:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def take_waiting(self) -> asyncio.Future[None]:
        """Return what is done when everything that waits in the pipe now has been read, or the pipe was let go."""
        self._taken = self._loop.create_future()
        self._due_bytes = _waiting_bytes(self._fd) if self._fd >= 0 else 0
        if self._due_bytes <= 0:
            self._taken.set_result(None)
        return self._taken

    def close(self) -> None:
        """Close both ends this process holds."""
        self.close_write_end()
        fd = self._let_go()
        if fd >= 0:
            os.close(fd)

    def _let_go(self) -> int:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
        if not self.closed.done():
            self.closed.set_result(None)
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
        return fd

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Give up a pipe that a background process still holds."""
        fd = self._let_go()
        if fd >= 0:
            lingering.adopt(fd)


def _waiting_bytes(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), sys.byteorder, signed=True)


class LingeringPipes:
    """Drains what background processes write after their call is over, so that they do not die of SIGPIPE."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fds: OrderedDict[int, None] = OrderedDict()

    def adopt(self, fd: int) -> None:
        """Take over a pipe's reading end. Past the limit the oldest one is closed."""
        if len(self._fds) >= _LINGERING_PIPES:
            self._close(next(iter(self._fds)))
        self._fds[fd] = None
        self._loop.add_reader(fd, self._readable, fd)

    def _readable(self, fd: int) -> None:
        try:
            size = os.readv(fd, [_buffer])
        except BlockingIOError:
            return
        if not size:
            self._close(fd)
            return
        self._loop.remove_reader(fd)
        self._loop.call_later(_LINGERING_PAUSE_S, self._resume, fd)

    def _resume(self, fd: int) -> None:
        if fd in self._fds:
            self._loop.add_reader(fd, self._readable, fd)

    def _close(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._fds[fd]
        os.close(fd)


class InputPipe:
    """A pipe a program reads from."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.read_fd, self._fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._room: asyncio.Future[None] | None = None

    def close_read_end(self) -> None:
        """Close this process' copy of the reading end."""
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    async def write(self, data: bytes) -> None:
        """Write all of `data`; what nobody can read any more is dropped."""
        view = memoryview(data)
        while view and self._fd >= 0:
            try:
                view = view[os.write(self._fd, view[:_WRITE_BYTES]) :]
            except BlockingIOError:
                await self._wait_for_room()
            except OSError:
                self.close()

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

    def close(self) -> None:
        """Close both ends this process holds: the program reads the end of its input."""
        self.close_read_end()
        self.end()

    def end(self) -> None:
        """Close the end that is written to; a program that has yet to start reads what was written before."""
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._has_room()
