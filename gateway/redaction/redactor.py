"""Redaction: secrets become `[redacted ID]` and asterisks, byte for byte, so offsets, sizes and pages stay true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import JsonValue

from gateway.policy.document import RedactionSection
from gateway.redaction.finders import Finder, RedactionFailed, Span, finders, found_in, longest_bytes
from gateway.redaction.patterns import GROUPS, LEAD_LIMIT_BYTES, WELL_KNOWN, compiled
from gateway.support.heavy_work import Work, at_once

# A piece of secrets without end takes some thirty milliseconds.
_PIECE_BYTES = 32_768
_TINY_BYTES = 256
# Looking for one pattern in so much, and finding none, takes less than a millisecond.
_LOOK_BYTES = 196_608
# Looking through so much for any patterns takes some tens of milliseconds where they are at their slowest.
_AT_ONCE_BYTES = 16_384
WITHHELD = "[withheld: redaction failed]"
"""What stands in the place of a text that could not be redacted."""
# So many secrets in one text or JSON value, which is redacted at once, are more than anybody is shown.
_SECRETS_LIMIT = 2000
# What a secret whose beginning is out of sight may be made of: the rest of a word, and further lines of a key.
_LEADING = compiled(r"[A-Za-z0-9_+/=.~%:@-]*(?:[\r\n]+[ \t]*[A-Za-z0-9+/=]{4,}[ \t]*)*")
T = TypeVar("T")


class Redactor:
    """What a policy's redaction section takes out. It keeps nothing between calls.

    Where there is no secret, looking costs some nanoseconds a byte, and is done at once. What takes time is taking
    secrets out, about a microsecond a byte where they are dense: it is done in pieces, each in a turn of the tenant.
    """

    def __init__(self, section: RedactionSection, work: Work = at_once) -> None:
        """`work` does what may take long, in turns of the tenant."""
        self._section = section
        self.work = work
        own = [longest_bytes(one) for one in section.patterns]
        well_known = [one.longest_bytes + LEAD_LIMIT_BYTES for one in WELL_KNOWN] if section.well_known else []
        self.margin_bytes = max(own + well_known, default=0)
        """How much must be known around a page so that no secret at its edge is missed: the longest there is."""
        self.sign_bytes = max([*own, LEAD_LIMIT_BYTES + max(one.within_bytes for one in WELL_KNOWN)])
        """How much of a secret identifies it."""
        self._finders_count = (len(GROUPS) if section.well_known else 0) + len(section.patterns)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to take out."""
        return not self._finders_count

    async def work_on(self, size_bytes: int, function: Callable[..., T], /, *args: Any) -> T:
        """Call what looks through so many bytes: at once if they are few, otherwise in a turn of the tenant."""
        return await self.work(function, *args) if size_bytes > _AT_ONCE_BYTES else function(*args)

    async def redact(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        """Return the bytes, as many, without secrets.

        With `cut_start` or `cut_end` something came before or after that is not known: what may be a part of a secret
        there is masked too. Raises RedactionFailed.
        """
        redacted = data
        if cut_end or not self._is_clean(data):
            stream = self.stream()
            redacted = await self.feed(stream, data) + stream.flush(cut=cut_end)
        return self.without_cut_start(redacted) if cut_start else redacted

    def _is_clean(self, data: bytes) -> bool:
        """Return whether one look, which is quick, finds no secret: most texts are short and have none."""
        return len(data) * self._finders_count <= _LOOK_BYTES and not self.finds(data)

    async def feed(self, stream: RedactingStream, data: bytes) -> bytes:
        """Feed a stream, each piece in a turn; return what is known by now. Raises RedactionFailed."""
        if len(data) <= _TINY_BYTES:
            return stream.feed(data)
        return b"".join([await self.work(stream.feed, piece) for piece in _pieces(data)])

    def without_cut_start(self, redacted: bytes) -> bytes:
        """Return redacted bytes before which others are not known, without what may be the rest of a secret."""
        leading = _LEADING.match(redacted, 0, self.margin_bytes)
        end = 0 if leading is None else leading.end()
        return mask_of("cut", 0, end) + redacted[end:]

    async def within(self, before: bytes, data: bytes, after: bytes = b"") -> bytes:
        """Return `data` without secrets, also without those that begin in `before` or end in `after`."""
        redacted = await self.redact(before + data + after)
        return redacted[len(before) : len(before) + len(data)]

    def text(self, text: str) -> str:
        """Return text without secrets. Raises RedactionFailed, also where it is secrets without end."""
        return self._texts([text])[0]

    def shown(self, text: str) -> str:
        """Return text without secrets, or what stands in its place where that fails."""
        try:
            return self.text(text)
        except RedactionFailed:
            return WITHHELD

    def json(self, value: JsonValue) -> JsonValue:
        """Return JSON without secrets in its texts and keys; raises as text() does."""
        texts = list(_texts_in(value))
        redacted = self._texts(texts)
        return value if redacted == texts else _with_texts(value, iter(redacted))

    def _texts(self, texts: list[str]) -> list[str]:
        """Return texts redacted as the lines of one: lengths stay, so it comes apart again as it was."""
        pieces = [text.encode("utf-8", "surrogatepass") for text in texts]
        data = b"\n".join(pieces)
        if not self.finds(data):
            return texts
        stream = self.stream(secrets_limit=_SECRETS_LIMIT)
        redacted = b"".join((*map(stream.feed, _pieces(data)), stream.flush()))
        result: list[str] = []
        at = 0
        for text, piece in zip(texts, pieces, strict=True):
            shown = redacted[at : at + len(piece)]
            result.append(text if shown == piece else shown.decode("utf-8", "replace"))
            at += len(piece) + 1
        return result

    def finds(self, data: bytes) -> bool:
        """Return whether there is a secret in data that are whole."""
        return found_in(data, self._section)

    def stream(self, *, secrets_limit: int | None = None) -> RedactingStream:
        return RedactingStream(finders(self._section), secrets_limit=secrets_limit)


class RedactingStream:
    """Takes a stream in pieces and gives it back redacted: the same bytes as Redactor.redact, whatever the pieces.

    What may be the start of a secret is kept back until more is known, a few KiB at most.
    """

    def __init__(self, finders_: list[Finder], *, secrets_limit: int | None = None) -> None:
        """More secrets than `secrets_limit` raise RedactionFailed."""
        self._finders = finders_
        self._secrets_left = secrets_limit
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
        groups = _groups(self._spans)
        if self._secrets_left is not None:
            self._secrets_left -= len(groups)
            if self._secrets_left < 0:
                raise RedactionFailed("there are too many secrets in this text to take them out at once")
        for group in groups:
            start, end = group[0].start, max(span.end for span in group)
            if start < safe and end > position:
                first, last = max(start, position), min(end, safe)
                pieces += (
                    plain[position - self._given : first - self._given],
                    mask_of(group[0].id, first - start, last - start),
                )
                position = last
            if end > safe or any(span.open for span in group):
                for span in group:
                    # What goes on is one secret with what it began as.
                    span.start, span.id, span.order = start, group[0].id, group[0].order
                kept += [span for span in group if span.end > safe or span.open]
        self._spans = kept
        return b"".join((*pieces, plain[position - self._given :]))


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield data in pieces: no step takes long, so that in a thread this leaves room for others."""
    return (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))


def _texts_in(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _texts_in(member)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from _texts_in(member)


def _with_texts(value: JsonValue, texts: Iterator[str]) -> JsonValue:
    """Return the JSON value with other texts in place of its own, in the same order."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [_with_texts(member, texts) for member in value]
    if isinstance(value, dict):
        return {next(texts): _with_texts(member, texts) for member in value.values()}
    return value


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


def mask_of(id_: str, first: int, last: int) -> bytes:
    """Return what stands for the bytes of a secret from its `first` up to its `last`."""
    label = f"[redacted {id_}]".encode()
    return label[first:last].ljust(last - first, b"*")


WELL_KNOWN_SECRETS = Redactor(RedactionSection())
"""For what belongs to no tenant, or to all: the lines of the log, spans, comments."""

NO_SECRETS = Redactor(RedactionSection(well_known=False))
"""Takes nothing out."""
