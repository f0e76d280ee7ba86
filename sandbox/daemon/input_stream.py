"""The Input frames that follow a request which takes input."""

from __future__ import annotations

from sandbox.daemon.frames import BrokenFrame, FrameSocket
from sandbox.v1 import channel_pb2 as wire

DATA_LIMIT_BYTES = 1024 * 1024
# The buffer of read_piece().
_BUFFER_BYTES = 512 * 1024
_DATA_TAG = wire.Input.DATA_FIELD_NUMBER << 3 | 2


class InputStream:
    """Bytes from the caller, until its end frame."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._ended = False
        # For read_piece(): received bytes that were not returned yet, and how many more bytes are the frame's data.
        self._buffer = memoryview(b"")
        self._start = self._end = self._left = 0

    async def read(self) -> bytes | None:
        """Return the next bytes, None at the end. BrokenFrame if the caller violates the protocol or goes away."""
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

    async def read_piece(self) -> memoryview | None:
        """Return the next bytes as they arrive, without a copy; valid until the next call. Otherwise as read()."""
        while not self._ended:
            if self._left and self._start < self._end:
                stop = min(self._end, self._start + self._left)
                piece = self._buffer[self._start : stop]
                self._left -= len(piece)
                self._start = stop
                return piece
            if not self._left:
                head = _data_head(self._buffer[self._start : self._end])
                if head is None:
                    # The end, or another encoding: left to protobuf.
                    self._frames.put_back(bytes(self._buffer[self._start : self._end]))
                    self._start = self._end = 0
                    data = await self.read()
                    return None if data is None else memoryview(data)
                if head:
                    head_bytes, self._left = head
                    self._start += head_bytes
                    continue
            await self._receive()
        return None

    async def _receive(self) -> None:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        kept = self._end - self._start
        self._buffer[:kept] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, kept
        count = await self._frames.receive_into(self._buffer[kept:])
        if not count:
            raise BrokenFrame("the connection ended before the input did")
        self._end += count

    async def discard(self) -> None:
        """Read to the end, so that the next frame is the next request."""
        while await self.read_piece() is not None:
            pass


def _data_head(received: memoryview) -> tuple[int, int] | tuple[()] | None:
    """Return the sizes of a data frame's head and its data; () if more bytes are needed, None for any other frame.

    A data frame is a length, the tag of data, the data's length as a varint, and the data.
    """
    if len(received) < 4:
        return ()
    frame_bytes = int.from_bytes(received[:4], "big")
    if frame_bytes < 2:
        return None
    size = shift = 0
    for at in range(4, 4 + min(frame_bytes, 4)):
        if at >= len(received):
            return ()
        byte = received[at]
        if at == 4:
            if byte != _DATA_TAG:
                return None
            continue
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            whole = 0 < size <= DATA_LIMIT_BYTES and at + 1 - 4 + size == frame_bytes
            return (at + 1, size) if whole else None
    return None
