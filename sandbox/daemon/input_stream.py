"""The Input frames that follow a request which takes input."""

from __future__ import annotations

from sandbox.daemon.frames import BrokenFrame, FrameSocket
from sandbox.v1 import channel_pb2 as wire

DATA_LIMIT_BYTES = 1024 * 1024


class InputStream:
    """Bytes from the caller, until it says end."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._ended = False

    async def read(self) -> bytes | None:
        """Return the next bytes, None at the end. BrokenFrame when the caller breaks the protocol or goes away."""
        if self._ended:
            return None
        frame = await self._frames.read()
        if frame is None:
            raise BrokenFrame("the connection ended before the input did")
        message = wire.Input.FromString(frame)
        member = message.WhichOneof("input")
        if member == "end":
            self._ended = True
            return None
        if member != "data" or len(message.data) > DATA_LIMIT_BYTES:
            raise BrokenFrame(f"an Input frame must have end, or data of {DATA_LIMIT_BYTES} bytes at most")
        return message.data

    async def discard(self) -> None:
        """Read on to the end, so that the next frame is the next request."""
        while await self.read() is not None:
            pass
