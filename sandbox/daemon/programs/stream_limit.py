"""Output that is streamed completely, up to a limit in bytes that ends the program."""

from __future__ import annotations

from collections.abc import Callable

from sandbox.v1 import channel_pb2 as wire


class LimitedOutput:
    """Counts and keeps nothing; `on_passed` is called once, when output exceeds `limit_bytes`."""

    def __init__(self, limit_bytes: int, on_passed: Callable[[], None]) -> None:
        self._left_bytes = limit_bytes
        self._on_passed = on_passed
        self._passed = False
        self.total_bytes = 0

    def add(self, _stream: wire.OutputStream, buffer: bytearray, size: int) -> bytes:
        """Count the first `size` bytes of `buffer`; return those within the limit."""
        self.total_bytes += size
        within = bytes(memoryview(buffer)[: min(size, self._left_bytes)])
        self._left_bytes -= len(within)
        if len(within) < size and not self._passed:
            self._passed = True
            self._on_passed()
        return within

    def report(self, reply: wire.ExecReply, *, streamed: bool) -> None:
        del streamed
        reply.output_bytes = self.total_bytes

    def abandon(self) -> None: ...
