"""Redaction that delays no other tenant: long work is done in pieces, each in a turn of its tenant.

Where there is no secret, looking costs some nanoseconds a byte, and is done at once. What takes time is taking secrets
out, about a microsecond a byte where they are dense.
"""

from __future__ import annotations

from gateway.redaction.redactor import RedactingStream, Redactor
from gateway.support.heavy_work import Work, at_once

# A piece of secrets without end takes some thirty milliseconds.
_PIECE_BYTES = 32_768
_TINY_BYTES = 256
# Looking for one pattern in so much, and finding none, takes less than a millisecond.
_LOOK_BYTES = 196_608


class FairRedactor:
    """A Redactor whose work is done in turns; what it returns is the same."""

    def __init__(self, redactor: Redactor, work: Work = at_once) -> None:
        self.redactor = redactor
        self.margin_bytes, self.sign_bytes = redactor.margin_bytes, redactor.sign_bytes
        self._work = work

    async def redact(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        """Return the bytes without secrets; see Redactor.redact. Raises RedactionFailed."""
        if len(data) <= _TINY_BYTES:
            return self.redactor.redact(data, cut_start=cut_start, cut_end=cut_end)
        redacted = data
        if cut_end or not self._is_clean(data):
            stream = self.redactor.stream()
            redacted = await self.in_pieces(stream, data) + stream.flush(cut=cut_end)
        return self.without_cut_start(redacted) if cut_start else redacted

    def without_cut_start(self, redacted: bytes) -> bytes:
        """Return redacted bytes without what may be the rest of a secret; see Redactor.without_cut_start."""
        return self.redactor.without_cut_start(redacted)

    async def within(self, before: bytes, data: bytes, after: bytes = b"") -> bytes:
        """Return `data` without secrets, also without those that begin in `before` or end in `after`."""
        redacted = await self.redact(before + data + after)
        return redacted[len(before) : len(before) + len(data)]

    async def text(self, text: str) -> str:
        """Return text without secrets."""
        data = text.encode("utf-8", "surrogatepass")
        redacted = await self.redact(data)
        return text if redacted == data else redacted.decode("utf-8", "replace")

    def stream(self) -> FairStream:
        """Return a filter for one stream of bytes."""
        return FairStream(self, self.redactor.stream())

    async def in_pieces(self, stream: RedactingStream, data: bytes) -> bytes:
        """Feed a stream, each piece in a turn; return what is known by now. Raises RedactionFailed."""
        pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
        return b"".join([await self._work(stream.feed, piece) for piece in pieces])

    def _is_clean(self, data: bytes) -> bool:
        """Return whether one look, which is quick, finds no secret."""
        return len(data) * self.redactor.finders_count <= _LOOK_BYTES and not self.redactor.finds(data)


class FairStream:
    """A RedactingStream whose work is done in turns."""

    def __init__(self, fair: FairRedactor, stream: RedactingStream) -> None:
        self._fair = fair
        self._stream = stream

    async def feed(self, data: bytes) -> bytes:
        """Take a piece; return what is known by now. Raises RedactionFailed."""
        return self._stream.feed(data) if len(data) <= _TINY_BYTES else await self._fair.in_pieces(self._stream, data)

    def flush(self, *, cut: bool = False) -> bytes:
        """Return what is left, a few KiB at most; see RedactingStream.flush."""
        return self._stream.flush(cut=cut)
