"""Pipes between the server and tool processes, read and written without blocking the event loop."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

# One buffer for all pipes: each read is consumed before the next one.
_buffer = bytearray(256 * 1024)


async def until_silent(closed: Sequence[asyncio.Future[None]], count: Callable[[], int]) -> None:
    """Wait until all streams are closed or `count`, of what they wrote, stops growing; half a second at most."""
    loop = asyncio.get_running_loop()
    # A process may leave its streams to children: silent is who writes nothing for 50 ms, and some never are.
    deadline_s = loop.time() + 0.5
    seen = -1
    while seen != count() and loop.time() < deadline_s:
        seen = count()
        _, still_open = await asyncio.wait(closed, timeout=0.05)
        if not still_open:
            return


class Source:
    """A descriptor that is read by `_readable` except while it is paused; `closed` is done at the end.

    While it is paused, the program blocks once its pipe or terminal is full.
    """

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._paused = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        if self._fd >= 0 and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self._fd >= 0 and self._paused:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def _release(self) -> int:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
        _set(self.closed)
        return fd


class OutputPipe(Source):
    """A pipe a program writes to. `on_data(buffer, size)` gets each piece."""

    def __init__(self, on_data: Callable[[bytearray, int], None]) -> None:
        fd, self.write_fd = os.pipe()
        super().__init__(fd)
        self._on_data = on_data
        self._large = False
        self._due_bytes = 0
        self._emptied: asyncio.Future[None] | None = None
        self.pieces = 0

    def close_write_end(self) -> None:
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
        if size >= 64 * 1024 and not self._large:
            # Only for programs that write much: the memory of all pipes counts against one limit of the user.
            self._large = True
            with suppress(OSError):  # the limit is reached; a small pipe works too
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, 1024 * 1024)
        self.pieces += 1
        self._on_data(_buffer, size)
        if self._emptied is not None:
            self._due_bytes -= size
            if self._due_bytes <= 0:
                _set(self._emptied)

    def emptied(self) -> asyncio.Future[None]:
        """Return a future for when everything that is in the pipe now has been read, or the pipe is released."""
        self._emptied = self._loop.create_future()
        self._due_bytes = 0
        if self._fd >= 0:
            # From <asm-generic/ioctls.h>: the number of bytes in the pipe. The module termios has it, but costs an
            # import.
            self._due_bytes = int.from_bytes(fcntl.ioctl(self._fd, 0x541B, bytes(4)), sys.byteorder, signed=True)
        if self._due_bytes <= 0:
            self._emptied.set_result(None)
        return self._emptied

    def close(self) -> None:
        self.close_write_end()
        fd = self._release()
        if fd >= 0:
            os.close(fd)

    def _release(self) -> int:
        _set(self._emptied)
        return super()._release()

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Release a pipe that a background process may still write to."""
        fd = self._release()
        if fd >= 0:
            lingering.adopt(fd)


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class LingeringPipes:
    """Drains what background processes write after their call has ended, so that they do not die of SIGPIPE."""

    def __init__(self) -> None:
        self.pipes: dict[_LingeringPipe, None] = {}  # the oldest first

    def adopt(self, fd: int) -> None:
        """Take over a pipe's read end. Over the limit the oldest one is closed."""
        if len(self.pipes) >= 1024:
            next(iter(self.pipes)).close()
        self.pipes[_LingeringPipe(fd, self)] = None


class _LingeringPipe(Source):
    def __init__(self, fd: int, kept_by: LingeringPipes) -> None:
        super().__init__(fd)
        self._kept_by = kept_by

    def _readable(self) -> None:
        try:
            size = os.readv(self._fd, [_buffer])
        except BlockingIOError:
            return
        if size:
            self.pause()
            # Pipes without a call are drained this slowly, so that a forgotten `yes &` costs no processor time.
            self._loop.call_later(0.05, self.resume)
        else:
            self.close()

    def close(self) -> None:
        del self._kept_by.pipes[self]
        os.close(self._release())


class Writer:
    """A non-blocking descriptor to write to; it is closed when it has no reader any more."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._writable: asyncio.Future[None] | None = None

    async def write_some(self, data: memoryview) -> int:
        """Write a part of `data` as soon as possible; return its size, 0 once closed."""
        while self._fd >= 0:
            try:
                return os.write(self._fd, data[: 64 * 1024])
            except BlockingIOError:
                await self._wait_until_writable()
            except OSError:
                self.close()
        return 0

    async def _wait_until_writable(self) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._fd, _set, self._writable)
        try:
            await self._writable
        finally:
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    async def write_all(self, data: memoryview) -> None:
        """Write all of `data`; it is dropped once there is no reader."""
        while data and (size := await self.write_some(data)):
            data = data[size:]

    def release(self) -> int:
        """Stop writing and leave the descriptor to the caller; -1 if it is closed already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_writer(fd)
        _set(self._writable)
        return fd

    def close(self) -> None:
        """Close it: the program reads the end of its input."""
        fd = self.release()
        if fd >= 0:
            os.close(fd)


class ProgramPipes:
    """The pipes of one program: stdout and stderr, which may be one, and optionally stdin."""

    def __init__(self) -> None:
        self._pipes: list[OutputPipe] = []
        self._stdin_fd = -1  # the program's end

    def _open_stdin(self) -> int:
        self._stdin_fd, fd = os.pipe()
        os.set_blocking(fd, False)
        return fd

    def stdio(self) -> list[int]:
        """Return what the program gets: stdout, stderr and optionally stdin."""
        ends = [self._pipes[0].write_fd, self._pipes[-1].write_fd]
        return [*ends, self._stdin_fd] if self._stdin_fd >= 0 else ends

    def close_tool_ends(self) -> None:
        for pipe in self._pipes:
            pipe.close_write_end()
        if self._stdin_fd >= 0:
            os.close(self._stdin_fd)
            self._stdin_fd = -1

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Release pipes that other processes may still write to."""
        for pipe in self._pipes:
            pipe.leave_to(lingering)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self.close_tool_ends()
