"""Redaction: secrets become `[redacted ID]` and asterisks, byte for byte, so offsets, sizes and pages stay true."""

from __future__ import annotations

from pydantic import JsonValue

from gateway.policy.document import RedactionSection
from gateway.redaction.finders import Finder, Span, finders, found_in, longest_bytes
from gateway.redaction.patterns import compiled

# The longest private key in PEM, or another secret, and some room.
_LEAST_MARGIN_BYTES = 8192
_CUT_BYTES = 4096
_PIECE_BYTES = 65_536
# What a secret whose beginning is out of sight may be made of.
_LEADING = compiled(r"[A-Za-z0-9_+/=.~%:@-]+")


class Redactor:
    """What a policy's redaction section takes out. It keeps nothing between calls."""

    def __init__(self, section: RedactionSection) -> None:
        self._section = section
        self.margin_bytes = max([_LEAST_MARGIN_BYTES, *(longest_bytes(one) for one in section.patterns)])
        """How much must be known around a page so that no secret at its edge is missed."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to take out."""
        return not (self._section.well_known or self._section.patterns)

    def redact(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        """Return the bytes, as many, without secrets.

        With `cut_start` or `cut_end` something came before or after that is not known: what may be a part of a secret
        there is masked too. Raises RedactionFailed.
        """
        redacted = data
        # Most texts are short and have no secret: one look tells, and no finder is made.
        if cut_end or len(data) > _PIECE_BYTES or self._finds(data):
            stream = self.stream()
            # In pieces: no step takes long, so that in a thread this leaves room for others.
            pieces = [stream.feed(data[at : at + _PIECE_BYTES]) for at in range(0, len(data), _PIECE_BYTES)]
            redacted = b"".join((*pieces, stream.flush(cut=cut_end)))
        leading = _LEADING.match(redacted, 0, _CUT_BYTES) if cut_start else None
        if leading is None:
            return redacted
        return _mask("cut", 0, leading.end()) + redacted[leading.end() :]

    def within(self, before: bytes, data: bytes, after: bytes = b"") -> bytes:
        """Return `data` without secrets, also without those that begin in `before` or end in `after`."""
        redacted = self.redact(before + data + after)
        return redacted[len(before) : len(before) + len(data)]

    def text(self, text: str) -> str:
        """Return text without secrets."""
        if not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        redacted = self.redact(data)
        return text if redacted == data else redacted.decode("utf-8", "replace")

    def json(self, value: JsonValue) -> JsonValue:
        """Return JSON without secrets in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(member) for member in value]
        if isinstance(value, dict):
            return {self.text(key): self.json(member) for key, member in value.items()}
        return value

    def _finds(self, data: bytes) -> bool:
        return found_in(data, well_known=self._section.well_known, own=self._section.patterns)

    def stream(self) -> RedactingStream:
        """Return a filter for one stream of bytes."""
        return RedactingStream(finders(well_known=self._section.well_known, own=self._section.patterns))


class RedactingStream:
    """Takes a stream in pieces and gives it back redacted: the same bytes as Redactor.redact, whatever the pieces.

    What may be the start of a secret is held back until more is known, a few KiB at most.
    """

    def __init__(self, finders_: list[Finder]) -> None:
        self._finders = finders_
        self._buffer = b""
        self._base = 0
        self._given = 0
        self._spans: list[Span] = []

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return what is known by now. Raises RedactionFailed."""
        return self._take(data, final=False, cut=False)

    def flush(self, *, cut: bool = False) -> bytes:
        """Return what is left; with `cut` the stream did not end by itself, and what may be half a secret is masked."""
        if not self._buffer and not self._base:  # nothing came
            return b""
        return self._take(b"", final=True, cut=cut)

    def _take(self, data: bytes, *, final: bool, cut: bool) -> bytes:
        self._buffer += data
        for finder in self._finders:
            finder.scan(self._buffer, self._base, self._spans, final=final, cut=cut)
        end = self._base + len(self._buffer)
        safe = end if final else min((finder.safe for finder in self._finders), default=end)
        given = self._painted(safe)
        self._given = safe
        # One byte more, for what stands before a word decides where it begins.
        needed = min([safe, *(finder.next for finder in self._finders)]) - 1
        if needed > self._base:
            self._buffer = self._buffer[needed - self._base :]
            self._base = needed
        return given

    def _painted(self, safe: int) -> bytes:
        """Return the bytes that were not given yet, up to `safe`, masked; keep the spans that go on after it."""
        plain = self._buffer[self._given - self._base : safe - self._base]
        if not self._spans:
            return plain
        pieces: list[bytes] = []
        position = self._given
        kept: list[Span] = []
        for group in _groups(self._spans):
            start, end = group[0].start, max(span.end for span in group)
            if start < safe and end > position:
                first, last = max(start, position), min(end, safe)
                pieces += (
                    plain[position - self._given : first - self._given],
                    _mask(group[0].id, first - start, last - start),
                )
                position = last
            if end > safe or any(span.open for span in group):
                for span in group:
                    # What goes on is one secret with what it began as.
                    span.start, span.id, span.order = start, group[0].id, group[0].order
                kept += [span for span in group if span.end > safe or span.open]
        self._spans = kept
        return b"".join((*pieces, plain[position - self._given :]))


def _groups(spans: list[Span]) -> list[list[Span]]:
    """Return the spans in order, those together that overlap: they are shown as one, named after the first."""
    groups: list[list[Span]] = []
    end = -1
    for span in sorted(spans, key=lambda one: (one.start, one.order)):
        if span.start < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span.end)
    return groups


def _mask(id_: str, first: int, last: int) -> bytes:
    """Return what stands for the bytes of a secret from its `first` up to its `last`."""
    label = f"[redacted {id_}]".encode()
    return label[first:last].ljust(last - first, b"*")
