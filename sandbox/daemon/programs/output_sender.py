"""Sends output as it arrives, no faster than the gateway reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sandbox.daemon.frames import FrameSocket
from sandbox.v1 import channel_pb2 as wire

# Reading from the program pauses above the first and resumes below the second; one last piece may come on top.
PAUSE_ABOVE_BYTES = 256 * 1024
RESUME_BELOW_BYTES = 128 * 1024
# Memory of a piece besides its bytes, so that a program that writes single bytes is paused in time too.
_PIECE_COST_BYTES = 160
_JOIN_BELOW_BYTES = 64 * 1024

Piece = tuple[wire.OutputStream, bytes | bytearray]


class OutputSender:
    """Sends Started and then pieces of output, in order. `pause` and `resume` control the reading of output."""

    def __init__(self, frames: FrameSocket, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._frames = frames
        self._pause = pause
        self._resume = resume
        self._unsent: deque[Piece] = deque()
        self._unsent_bytes = 0
        self._paused = False
        self._more = asyncio.Event()
        self._over = False
        self._sending: asyncio.Task[None] | None = None

    def start(self, pid: int) -> asyncio.Task[None]:
        """Start sending; the task fails when the caller is gone."""
        self._sending = asyncio.ensure_future(self._send_all(pid))
        return self._sending

    def add(self, stream: wire.OutputStream, data: bytes) -> None:
        if not data:
            return
        last_stream, last = self._unsent[-1] if self._unsent else (None, b"")
        if last_stream == stream and len(last) + len(data) <= _JOIN_BELOW_BYTES:
            if isinstance(last, bytes):
                last = bytearray(last)
                self._unsent[-1] = (stream, last)
            last += data
            self._unsent_bytes += len(data)
        else:
            self._unsent.append((stream, data))
            self._unsent_bytes += _cost_bytes(data)
        self._more.set()
        if self._unsent_bytes > PAUSE_ABOVE_BYTES and not self._paused:
            self._paused = True
            self._pause()

    async def finish(self) -> None:
        """Send the rest; waits while the caller does not read."""
        if self._sending is not None:
            self._over = True
            self._more.set()
            await self._sending

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self, pid: int) -> None:
        await self._frames.send(wire.Reply(started=wire.Started(pid=pid)))
        while True:
            while self._unsent:
                stream, data = self._unsent.popleft()
                await self._frames.send(wire.Reply(output={"stream": stream, "data": bytes(data)}))
                self._unsent_bytes -= _cost_bytes(data)
                if self._paused and self._unsent_bytes < RESUME_BELOW_BYTES:
                    self._paused = False
                    self._resume()
            if self._over:
                return
            self._more.clear()
            await self._more.wait()


def _cost_bytes(data: bytes | bytearray) -> int:
    return len(data) + _PIECE_COST_BYTES
