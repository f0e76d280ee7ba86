"""The output of commands: each stream is redacted as a whole and scanned once, for live output and the result alike.

In the content of a result the streams alternate, so a secret may be made of the end of one and the start of the other.
Where a stream takes over in the middle of a line, the bytes around that place are scanned once more.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from agent.filesystem import OutputStream, Redacted
from gateway.redaction.redactor import RedactingStream, Redactor
from sandbox.in_turns import in_turns
from sandbox.protocols import OutputPiece

_KEY_HEADER = b"-----BEGIN"


class LiveRedaction:
    """An OutputFilter (agent.hooks.hook) of one call's output."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor

    @cached_property
    def _streams(self) -> dict[OutputStream, RedactingStream]:
        # Most calls show nothing live.
        return {"stdout": self.redactor.stream(), "stderr": self.redactor.stream()}

    async def feed(self, stream: OutputStream, data: bytes) -> bytes:
        """Return what may be shown by now."""
        return data if isinstance(data, Redacted) else await self.redactor.feed(self._streams[stream], data)

    async def flush(self, stream: OutputStream, *, cut: bool) -> bytes:
        return self._streams[stream].flush(cut=cut)


class KeptRedaction(LiveRedaction):
    """Keeps what it was given and what it returned of each stream; a command's live output is limited."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(redactor)
        self._given = {"stdout": bytearray(), "stderr": bytearray()}
        self._shown = {"stdout": bytearray(), "stderr": bytearray()}

    async def feed(self, stream: OutputStream, data: bytes) -> bytes:
        """Return what may be shown by now, marked as redacted."""
        self._given[stream] += data
        shown = Redacted(await super().feed(stream, data))
        self._shown[stream] += shown
        return shown

    async def flush(self, stream: OutputStream, *, cut: bool) -> bytes:
        rest = Redacted(await super().flush(stream, cut=cut))
        self._shown[stream] += rest
        return rest

    async def whole(self, stream: OutputStream, data: bytes, *, cut_start: bool, cut_end: bool) -> bytes:
        """Return bytes of a stream redacted; those that it was given first are not scanned again."""
        shown = self._shown[stream]
        if not cut_start and len(data) <= len(shown) and self._given[stream].startswith(data):
            return bytes(shown[: len(data)])
        return await self.redactor.redact(data, cut_start=cut_start, cut_end=cut_end)


async def redacted_pieces(
    kept: KeptRedaction, pieces: Sequence[OutputPiece], *, cut_start: bool = False, cut_end: bool = False
) -> tuple[OutputPiece, ...]:
    """Return the pieces redacted and marked so; redaction keeps sizes, so pieces keep theirs.

    There may be tens of thousands, of a program that alternates between its streams.
    """
    parts: dict[OutputStream, list[bytes]] = {}
    async for piece in in_turns(pieces):
        parts.setdefault(piece.stream, []).append(piece.data)
    streams = {
        stream: await kept.whole(stream, b"".join(data), cut_start=cut_start, cut_end=cut_end)
        for stream, data in parts.items()
    }
    redacted: list[bytes] = []
    taken = dict.fromkeys(streams, 0)
    async for piece in in_turns(pieces):
        start = taken[piece.stream]
        taken[piece.stream] = start + len(piece.data)
        redacted.append(streams[piece.stream][start : taken[piece.stream]])
    content = b"".join(redacted)
    for start, end in await _meeting_places(pieces, redacted, kept.redactor.sign_bytes):
        around = content[start:end]
        if await kept.redactor.redact(around) != around:
            redacted = await _divided(await kept.redactor.redact(content), pieces)
            break
    masked_ends = [
        True
        async for shown, piece in in_turns(zip(redacted[:-1], pieces[:-1], strict=True))
        if shown[-1:] != piece.data[-1:]
    ]
    if masked_ends:
        # A secret ends a piece, and may go on in the next one, which is of the other stream.
        again = await _divided(await kept.redactor.redact(b"".join(piece.data for piece in pieces)), pieces)
        three = zip((piece.data for piece in pieces), redacted, again, strict=True)
        redacted = [_masked(*each) async for each in in_turns(three)]
    both = in_turns(zip(pieces, redacted, strict=True))
    return tuple([OutputPiece(piece.stream, Redacted(shown)) async for piece, shown in both])


async def _divided(content: bytes, pieces: Sequence[OutputPiece]) -> list[bytes]:
    ends = accumulate((len(piece.data) for piece in pieces), initial=0)
    return [content[start:end] async for start, end in in_turns(pairwise(ends))]


def _masked(data: bytes, one: bytes, other: bytes) -> bytes:
    if data in (one, other):
        return other if data == one else one
    return bytes(b if a == byte else a for byte, a, b in zip(data, one, other, strict=True))


async def _meeting_places(
    pieces: Sequence[OutputPiece], redacted: Sequence[bytes], reach_bytes: int
) -> list[tuple[int, int]]:
    """Return where a secret could span a change of streams, as ranges of the content that do not overlap.

    It cannot where both streams begin a new line there: only a private key has several lines, and it has a header.
    """
    ends: dict[OutputStream, bytes] = {}
    content = bytearray()
    places: list[tuple[int, int]] = []
    start = end = 0
    header_at = -1
    async for piece, data in in_turns(zip(pieces, redacted, strict=True)):
        at = len(content)
        lines = content.endswith(b"\n") and ends.get(piece.stream, b"\n") == b"\n"
        if at and data and not (lines and (header_at < 0 or header_at < at - reach_bytes)):
            if at - reach_bytes > end:
                if end:
                    places.append((start, end))
                start = at - reach_bytes
            end = at + reach_bytes
        content += data
        header_at = max(header_at, content.rfind(_KEY_HEADER, max(0, at - len(_KEY_HEADER) + 1)))
        ends[piece.stream] = data[-1:] or ends.get(piece.stream, b"\n")
    if end:
        places.append((max(0, start), end))
    return places
