"""The input and output of a background process."""

from __future__ import annotations

import asyncio
import os
import select
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from sandbox.daemon.failures import Fault, invalid_argument
from sandbox.daemon.paths import Place, closing
from sandbox.daemon.programs.pipes import Source, Writer
from sandbox.daemon.programs.spill import create_private_file, write_what_fits
from sandbox.v1 import channel_pb2 as wire


class StreamOutput:
    """One stream of output: its newest bytes in memory, all of them in a file, read by offset.

    `open_file` creates the file once the ring overflows; None for no file. Output is read whether or not a caller wants
    it, so memory is bounded and the program is not blocked.
    """

    def __init__(self, ring_bytes: int, open_file: Callable[[], OutputFile] | None) -> None:
        self.size_bytes = 0
        self.closed = False
        # The byte at offset N is at N % ring_bytes. It grows as needed, up to ring_bytes.
        self._ring = bytearray()
        self._ring_bytes = ring_bytes
        self._open_file = open_file
        self._file: OutputFile | None = None
        self._news: asyncio.Future[None] | None = None

    @property
    def ring_offset(self) -> int:
        """Offset of the oldest byte in memory."""
        return max(0, self.size_bytes - self._ring_bytes)

    def add(self, buffer: bytes | bytearray, size: int) -> None:
        with memoryview(buffer) as whole, whole[:size] as view:
            if self._file is None and self._open_file is not None and self.size_bytes + size > self._ring_bytes:
                self._file = self._open_file()
                self._file.append(self._ring)
            if self._file is not None:
                self._file.append(view)
            self._keep(view)
        self._notify()

    def _keep(self, view: memoryview) -> None:
        start = self.size_bytes
        self.size_bytes += len(view)
        if len(view) > self._ring_bytes:
            start += len(view) - self._ring_bytes
            view = view[len(view) - self._ring_bytes :]
        self._ring.extend(bytes(min(self._ring_bytes, self.size_bytes) - len(self._ring)))
        at = start % self._ring_bytes
        first = min(len(view), self._ring_bytes - at)
        self._ring[at : at + first] = view[:first]
        self._ring[: len(view) - first] = view[first:]

    def end(self) -> None:
        self.closed = True
        if self._file is not None:
            self._file.close()
        self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def wait_for(self, offset: int, wait_s: float) -> None:
        """Wait until there is a byte at `offset`, the stream is closed, or `wait_s` passes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while offset >= self.size_bytes and not self.closed and (left_s := deadline - loop.time()) > 0:
            if self._news is None:
                self._news = loop.create_future()
            await asyncio.wait([self._news], timeout=left_s)

    def page(self, offset: int, limit_bytes: int) -> wire.ProcessReadReply:
        """Return bytes from `offset`, or from a later offset if those in between are lost."""
        data = b""
        if offset < self.ring_offset:
            data = self._file.read(offset, limit_bytes) if self._file is not None else b""
            if not data:
                offset = self.ring_offset
        if not data and offset < self.size_bytes:
            at, length = offset % self._ring_bytes, min(limit_bytes, self.size_bytes - offset)
            data = bytes(self._ring[at : at + length])
            data += bytes(self._ring[: length - len(data)])
        end = self.closed and offset + len(data) >= self.size_bytes
        return wire.ProcessReadReply(data=data, offset=offset, end=end, size_bytes=self.size_bytes)

    def report(self) -> wire.ProcessOutput:
        return wire.ProcessOutput(
            size_bytes=self.size_bytes,
            ring_offset=self.ring_offset,
            path=self._file.path if self._file is not None else "",
            path_bytes=self._file.size_bytes if self._file is not None else 0,
            closed=self.closed,
        )


class OutputFile:
    """Takes bytes up to a limit. It never fails: after a failed write `size_bytes` no longer grows.

    `path` is empty if the file could not be created. Tool code can modify or replace it. Reading never follows a link,
    never blocks, and never returns bytes of another file: a file that was not created here counts as missing.
    """

    def __init__(self, path: str, limit_bytes: int, workspace: str) -> None:
        self.path = path
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._fd = -1
        try:
            with Place(path, make_parents=True, what="output_directory") as place:
                self._fd = create_private_file(place, workspace)
            self._identity = _identity(os.fstat(self._fd))
        except (Fault, OSError):
            self.path = ""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Append as much as fits; the first byte that does not is the end of the file."""
        if self._fd < 0:
            return
        with memoryview(data) as view:
            done = write_what_fits(self._fd, view[: self._limit_bytes - self.size_bytes])
            self.size_bytes += done
            if done < len(view):
                self.close()

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """Return bytes from an offset, b"" if they are gone."""
        length = min(limit_bytes, self.size_bytes - offset)
        if not self.path or length <= 0:
            return b""
        with suppress(Fault, OSError):
            with Place(self.path) as place:
                fd, state = place.open_regular()
            with closing(fd):
                if _identity(state) == self._identity:
                    return os.pread(fd, length, offset)
        return b""

    def close(self) -> None:
        """End writing; reading continues."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


_BYTES_PER_S = 128 * 1024 * 1024
_BURST_S = 0.02
# Reading a piece costs as much as so many bytes.
_PIECE_BYTES = 16 * 1024


class RateLimit:
    """Limits how fast the output of all background processes together is read.

    Most of it is never read by a caller, so reading as fast as `yes` writes would waste processor time and delay the
    server among hundreds of tool processes. A faster program blocks in its write, as with a slow terminal.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._exempt: set[Source] = set()

    def took(self, source: Source, size: int) -> None:
        """Count a piece that was read; its source is paused if all together are too fast."""
        now_s = self._loop.time()
        self._due_s = max(self._due_s, now_s) + (size + _PIECE_BYTES) / _BYTES_PER_S
        if self._due_s - now_s > _BURST_S and source not in self._exempt:
            source.pause()
            self._loop.call_at(self._due_s, source.resume)

    @contextmanager
    def exempt(self, sources: Sequence[Source]) -> Iterator[None]:
        """Do not pause sources meanwhile: their writer has ended, so what is left is bounded."""
        self._exempt.update(sources)
        for source in sources:
            source.resume()
        try:
            yield
        finally:
            self._exempt.difference_update(sources)


class _Write:
    """A write, and how many of its bytes all attempts have written."""

    __slots__ = ("size_bytes", "taken_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0


class ProcessInput(Writer):
    """The write end of a pipe, or a terminal. Writes are serialized; `taken_bytes` counts all of them.

    A write whose answer was lost can be repeated: by its offset or an id, it continues after what it had written.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._lock = asyncio.Lock()
        self._writes: OrderedDict[str, _Write] = OrderedDict()
        self.taken_bytes = 0

    def is_open(self) -> bool:
        """Return whether a process has the other end open."""
        if self._fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fd, 0)
        return not poller.poll(0)  # errors and hang-ups are always reported

    async def write(self, data: bytes, wait_s: float, *, offset: int | None = None, request_id: str = "") -> int:
        """Write `data`; return how many bytes were written before `wait_s` passed or the last reader was gone.

        Bytes that an earlier attempt wrote, with the same id or by `offset`, count and are not written again. Fault if
        `offset` is beyond what was written, or the id belongs to another write.
        """
        write = _Write(len(data))

        async def write_all() -> None:
            nonlocal write
            async with self._lock:  # an earlier attempt may be in progress
                write = self._known(write, offset, request_id)
                view = memoryview(data)
                while write.taken_bytes < len(data) and (size := await self.write_some(view[write.taken_bytes :])):
                    write.taken_bytes += size
                    self.taken_bytes += size

        # asyncio.timeout() would have to be loaded first, and under attack that may be impossible.
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
        """Return the write that this one repeats, or this one, less what was already written of it."""
        earlier = self._writes.get(request_id)
        if earlier is not None:
            if earlier.size_bytes != write.size_bytes:
                raise invalid_argument("request_id was given to another write to this process; take a new one for each")
            return earlier
        if offset is not None:
            if offset > self.taken_bytes:
                raise Fault(
                    wire.FAILURE_KIND_INPUT_GAP,
                    f"offset is {offset}, but stdin has taken {self.taken_bytes} bytes: continue from there",
                    taken_bytes=self.taken_bytes,
                )
            write.taken_bytes = min(self.taken_bytes - offset, write.size_bytes)
        if request_id:
            self._writes[request_id] = write
            if len(self._writes) > 64:
                self._writes.popitem(last=False)
        return write
