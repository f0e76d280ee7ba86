"""One stream of a background process: its newest bytes in memory, all of them in a file, read by offset.

Output is read whether or not a caller wants it, so memory is bounded and the program is not blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandbox.daemon.programs.output_file import OutputFile
from sandbox.v1 import channel_pb2 as wire


class StreamOutput:
    """Takes output in order. `open_file` creates the file once the ring overflows; None for no file."""

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
            data = self._from_ring(offset, min(limit_bytes, self.size_bytes - offset))
        end = self.closed and offset + len(data) >= self.size_bytes
        return wire.ProcessReadReply(data=data, offset=offset, end=end, size_bytes=self.size_bytes)

    def _from_ring(self, offset: int, length: int) -> bytes:
        at = offset % self._ring_bytes
        data = bytes(self._ring[at : at + length])
        return data + bytes(self._ring[: length - len(data)])

    def report(self) -> wire.ProcessOutput:
        return wire.ProcessOutput(
            size_bytes=self.size_bytes,
            ring_offset=self.ring_offset,
            path=self._file.path if self._file is not None else "",
            path_bytes=self._file.size_bytes if self._file is not None else 0,
            closed=self.closed,
        )
