"""The standard input of a background process. A caller waits for a limited time until the process reads.

A write whose answer was lost can be repeated: by its offset or an id, it continues after what it had written.
"""

from __future__ import annotations

import asyncio
import select
from collections import OrderedDict

from sandbox.daemon.failures import Fault, invalid_argument
from sandbox.daemon.programs.pipes import Writer
from sandbox.v1 import channel_pb2 as wire

_REMEMBERED_WRITES = 64


class _Write:
    """A write, and how many of its bytes all attempts have written."""

    __slots__ = ("size_bytes", "taken_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0


class ProcessInput(Writer):
    """The write end of a pipe, or a terminal. Writes are serialized; `taken_bytes` counts all of them."""

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
            if len(self._writes) > _REMEMBERED_WRITES:
                self._writes.popitem(last=False)
        return write
