"""The output of a program within bounds: complete while it is small, otherwise head, tail and a file; or all streamed.

Output is evicted here, at the source: beyond the limit only head and tail cross the socket, and memory is constant
however much the program writes.
"""

from collections import deque
from collections.abc import Callable

from sandbox.daemon.programs.spill import Spill
from sandbox.v1 import channel_pb2 as wire

# Kept output must fit one frame. The overhead of each piece counts too, which bounds a program that alternates between
# its streams byte by byte.
KEPT_LIMIT_BYTES = 1024 * 1024
_PIECE_COST_BYTES = 16
# The one that exceeds the limit is reported too, or streamed.
PIECES_LIMIT = KEPT_LIMIT_BYTES // (1 + _PIECE_COST_BYTES) + 1

Piece = tuple[wire.OutputStream, bytearray]


class KeptOutput:
    """Takes output in order of arrival."""

    def __init__(self, limit: wire.OutputLimit, open_spill: Callable[[], Spill]) -> None:
        self._limit_chars = limit.limit_chars
        # Bounds bytes that start no character.
        self._limit_bytes = limit.limit_chars * BYTES_PER_CHARACTER
        self._head_chars = limit.head_chars
        self._open_spill = open_spill
        self._pieces: list[Piece] = []
        self._chars = 0
        self._cost_bytes = 0
        self._spill: Spill | None = None
        self._tail = _Tail(limit.tail_chars)
        self.total_bytes = 0

    def add(self, stream: wire.OutputStream, buffer: bytearray, size: int) -> bytes:
        """Add the first `size` bytes of `buffer`; return those within the limit, for streaming."""
        self.total_bytes += size
        if self._spill is not None:
            self._spill.write(buffer, size)
            self._tail.add(stream, memoryview(buffer)[:size])
            return b""
        data = bytes(memoryview(buffer)[:size])
        left_chars = self._limit_chars - self._chars
        left_bytes = self._limit_bytes - (self.total_bytes - size)
        self._chars += count_characters(data)
        self._keep(stream, data)
        within = self._chars <= self._limit_chars and self.total_bytes <= self._limit_bytes
        if within and self._cost_bytes <= KEPT_LIMIT_BYTES:
            return data
        self._evict()
        return data[: min(prefix_length(data, left_chars), left_bytes)]

    def _keep(self, stream: wire.OutputStream, data: bytes) -> None:
        self._cost_bytes += len(data)
        if self._pieces and self._pieces[-1][0] == stream:
            self._pieces[-1][1].extend(data)
        else:
            self._pieces.append((stream, bytearray(data)))
            self._cost_bytes += _PIECE_COST_BYTES

    def _evict(self) -> None:
        """Divide what was kept into head and tail, and start the file with it."""
        self._spill = self._open_spill()
        pieces, self._pieces = self._pieces, []
        left_chars = self._head_chars
        for stream, data in pieces:
            self._spill.write(data, len(data))
            cut = prefix_length(bytes(data), left_chars) if left_chars else 0
            if cut:
                left_chars -= count_characters(bytes(data[:cut]))
                self._pieces.append((stream, data[:cut]))
            if cut < len(data):
                left_chars = 0
                self._tail.add(stream, memoryview(data)[cut:])

    def report(self, reply: wire.ExecReply, *, streamed: bool) -> None:
        reply.output_bytes = self.total_bytes
        if not streamed:
            for stream, data in self._pieces:
                reply.output.add(stream=stream, data=bytes(data))
        if self._spill is not None:
            for stream, kept in self._tail.last_characters():
                reply.tail.add(stream=stream, data=kept)
            reply.evicted.CopyFrom(self._spill.close())

    def abandon(self) -> None:
        if self._spill is not None:
            self._spill.abandon()


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

    def report(self, reply: wire.ExecReply, *, streamed: bool) -> None:  # noqa: ARG002 - as KeptOutput
        reply.output_bytes = self.total_bytes

    def abandon(self) -> None: ...


class _Tail:
    """The last characters of a sequence of pieces, in a small multiple of their bytes."""

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._needed_bytes = chars * BYTES_PER_CHARACTER
        self._pieces: deque[Piece] = deque()
        self._kept_bytes = 0

    def add(self, stream: wire.OutputStream, data: memoryview) -> None:
        if not self._needed_bytes:
            return
        if len(data) >= self._needed_bytes:
            self._pieces.clear()
            self._kept_bytes = 0
            data = data[len(data) - self._needed_bytes :]
        if (
            self._pieces
            and self._pieces[-1][0] == stream
            and len(self._pieces[-1][1]) < min(self._needed_bytes, 64 * 1024)
        ):
            self._pieces[-1][1].extend(data)
        else:
            self._pieces.append((stream, bytearray(data)))
        self._kept_bytes += len(data)
        while self._kept_bytes - len(self._pieces[0][1]) >= self._needed_bytes:
            self._kept_bytes -= len(self._pieces.popleft()[1])

    def last_characters(self) -> list[tuple[wire.OutputStream, bytes]]:
        result: list[tuple[wire.OutputStream, bytes]] = []
        left_chars = self._chars
        left_bytes = self._needed_bytes
        for stream, data in reversed(self._pieces):
            if left_chars <= 0 or left_bytes <= 0:
                break
            kept = bytes(data[-left_bytes:])
            kept = kept[suffix_start(kept, left_chars) :]
            left_chars -= count_characters(kept)
            left_bytes -= len(kept)
            result.append((stream, kept))
        return result[::-1]


# Characters are counted in bytes without decoding them: each byte that is not a UTF-8 continuation starts one. Invalid
# UTF-8 may contain any number of bytes and no character, so callers must bound bytes too.
BYTES_PER_CHARACTER = 4  # at most, in valid text
_CONTINUATION = bytes(range(0x80, 0xC0))


def count_characters(data: bytes) -> int:
    """Return how many characters start in `data`."""
    return len(data) if data.isascii() else len(data.translate(None, _CONTINUATION))


def prefix_length(data: bytes, characters: int) -> int:
    """Return the length in bytes of the first `characters` characters, without splitting one."""
    length = _prefix_length(data, characters)
    return min(length, BYTES_PER_CHARACTER * characters)


def _prefix_length(data: bytes, characters: int) -> int:
    if data.isascii():
        return min(characters, len(data))
    # Bisect: the character after the last wanted one starts in [start, end).
    start, end, left = 0, len(data), characters
    if count_characters(data) <= characters:
        return len(data)
    while end - start > 1:
        middle = (start + end) // 2
        begun = count_characters(data[start:middle])
        if begun > left:
            end = middle
        else:
            start, left = middle, left - begun
    return start


def suffix_start(data: bytes, characters: int) -> int:
    """Return the offset of the last `characters` characters."""
    excess = count_characters(data) - characters
    start = _prefix_length(data, excess) if excess > 0 else 0
    return max(start, len(data) - BYTES_PER_CHARACTER * characters)
