"""Output that is streamed whole, up to a limit in bytes that ends the program."""

from __future__ import annotations

from collections.abc import Callable

from sandbox.v1 import channel_pb2 as wire


class LimitedOutput:
    """Keeps nothing and counts; `on_passed` is called once, when there is more output than `limit_bytes`."""

    def __init__(self, limit_bytes: int, on_passed: Callable[[], None]) -> None:
        self._room_bytes = limit_bytes
        self._on_passed = on_passed
        self._passed = False
        self.total_bytes = 0

    def add(self, _stream: wire.OutputStream, buffer: bytearray, size: int) -> bytes:
        """Take the first `size` bytes of `buffer`; return what of them is within the limit."""
        self.total_bytes += size
        within = bytes(memoryview(buffer)[: min(size, self._room_bytes)])
        self._room_bytes -= len(within)
        if len(within) < size and not self._passed:
            self._passed = True
            self._on_passed()
        return within

    def report(self, reply: wire.ExecReply, *, streamed: bool) -> None:
        """Write into the reply what is known; everything was streamed."""
        del streamed
        reply.output_bytes = self.total_bytes

    def abandon(self) -> None:
        """Let go of nothing."""
