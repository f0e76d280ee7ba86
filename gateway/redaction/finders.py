"""Where the secrets are: one finder for each group of well-known formats, one for each pattern of a policy.

A finder is given a buffer again and again, each time with more bytes at its end, and adds the spans it is sure of. What
it finds is the same however the bytes are cut into pieces. Positions are absolute: `base` is where the buffer begins.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from agent.errors import Withheld
from gateway.policy.document import RedactedPattern, RedactionSection
from gateway.redaction.patterns import GROUPS, LEAD_LIMIT_BYTES, WELL_KNOWN, SecretFormat, compiled

# By identity: a format is a large value to hash, and this is asked once for each secret.
_ORDER = {id(secret): place for place, secret in enumerate(WELL_KNOWN, start=1)}
_UTF8_BYTES = 4
_LOOK_AHEAD_BYTES = 128
_LIMIT_MEMORY_BYTES = 8 * 1024 * 1024
# How often one call may look at a match that is longer than its pattern says: each look is linear in the buffer.
_LONG_MATCHES_LIMIT = 1000


class RedactionFailed(Withheld):
    """What to take out cannot be determined, so nothing may be shown."""

    def __init__(self, why: str) -> None:
        super().__init__(f"it could not be redacted: {why}")


@dataclass(eq=False, slots=True)
class Span:
    """Bytes from `start` up to `end` that are a secret of the kind `id`; `order` says which finder counts first."""

    start: int
    end: int
    id: str
    order: int
    open: bool = False


class _Group:
    """The formats of a group as one pattern, and what tells which of them matched."""

    def __init__(self, formats: Sequence[SecretFormat]) -> None:
        self.formats = tuple(formats)
        self.whole = compiled("|".join(one.whole for one in formats))
        # Anchored at the end: RE2 reads it backwards, no further than a run goes.
        self.unfinished = compiled(f"(?:{'|'.join(one.unfinished for one in formats)})\\z")
        self.window_bytes = LEAD_LIMIT_BYTES + max(one.within_bytes for one in formats)
        # Python's own engine tells the groups of a short match at little cost.
        self._leads = re.compile("|".join(f"({one.lead})" for one in formats).encode("latin-1"))

    def led_by(self, buffer: bytes, start: int) -> tuple[SecretFormat, int]:
        """Return the format whose lead-in is there, and where the lead-in ends."""
        found = self._leads.match(buffer, start)
        if found is None or found.lastindex is None:
            raise RedactionFailed("a lead-in that no format has")
        return self.formats[found.lastindex - 1], found.end()


@lru_cache(maxsize=1)
def _groups() -> tuple[_Group, ...]:
    return tuple(_Group(formats) for formats in GROUPS)


class WellKnownFinder:
    """Finds secrets in the formats of a group. A run that goes on with the next bytes is an open span until it ends.

    `next` is the first byte it will look at again, `safe` where what it does not know yet begins.
    """

    def __init__(self, group: _Group) -> None:
        self.next = 0
        self.safe = 0
        self._group = group
        self._open: tuple[SecretFormat, Span] | None = None

    def scan(self, buffer: bytes, base: int, spans: list[Span], *, final: bool, cut: bool) -> None:
        """Add the secrets in the buffer to `spans`, up to where one may have begun of which more bytes must tell.

        With `final` nothing follows; with `cut` something did, and is not known.
        """
        end = len(buffer)
        at = self.next - base
        if self._open is not None:
            secret, span = self._open
            at, goes_on = _run(secret, buffer, at, final=final)
            span.end = base + at
            if goes_on:
                self.next = self.safe = base + at
                return
            span.open = False
            self._open = None
        whole = self._group.whole
        half = None if final else self._unfinished(buffer, at)
        while (found := whole.search(buffer, at)) is not None:
            if half is not None and half[0] <= found.start():
                break
            secret, start = self._group.led_by(buffer, found.start())
            run_end, goes_on = (found.end() - 1, False) if secret.before else _run(secret, buffer, start, final=final)
            span = Span(base + start, base + run_end, secret.id, _ORDER[id(secret)])
            spans.append(span)
            if goes_on:
                span.open = True
                self._open = (secret, span)
                self.next = self.safe = base + run_end
                return
            at = run_end
            if half is not None and half[0] < at:
                half = self._unfinished(buffer, at)
        if half is not None:
            self.next, self.safe = base + half[0], base + half[1]
            return
        if cut and final:
            self._mask_half(buffer, base, at, spans)
        self.next = base + max(at, end - LEAD_LIMIT_BYTES)
        self.safe = base + end

    def _unfinished(self, buffer: bytes, at: int) -> tuple[int, int] | None:
        """Return where a secret may have begun that the buffer ends in, and where its lead-in ends."""
        found = self._group.unfinished.search(buffer, max(at, len(buffer) - self._group.window_bytes))
        return None if found is None else (found.start(), self._group.led_by(buffer, found.start())[1])

    def _mask_half(self, buffer: bytes, base: int, at: int, spans: list[Span]) -> None:
        end = len(buffer)
        while (half := self._unfinished(buffer, at)) is not None:
            secret, start = self._group.led_by(buffer, half[0])
            if start < end <= start + secret.within_bytes:
                spans.append(Span(base + start, base + end, secret.id, _ORDER[id(secret)]))
                return
            at = half[0] + 1


def _run(secret: SecretFormat, buffer: bytes, start: int, *, final: bool) -> tuple[int, bool]:
    """Return where the run from `start` ends, and whether more bytes could make it longer."""
    end, size = start, len(buffer)
    ahead_bytes = _LOOK_AHEAD_BYTES
    while True:
        # A little at first, then twice as much: a run may hold its own stop, and what comes after that is not read.
        looked = min(size, end + ahead_bytes)
        run = secret.run_regex.match(buffer, end, looked)
        begun, end = end, end if run is None else run.end()
        if secret.stop:
            stop = buffer.find(secret.stop, max(start, begun - len(secret.stop) + 1), end)
            if stop >= 0:
                return stop, False
        if end < looked or looked == size:
            break
        ahead_bytes *= 2
    if end < size or final:
        return end, False
    for length in range(min(len(secret.stop) - 1, end - start), 0, -1):
        if buffer.endswith(secret.stop[:length]):
            return end - length, True
    return end, True


class OwnFinder:
    """Finds what a policy's own pattern matches, within a line, ^ and $ being the line's.

    Of a match that is longer than the longest there is, as the policy says, so much is tried. While a line has not
    ended, its last bytes are kept back: no more than a match may have.
    """

    def __init__(self, own: RedactedPattern, order: int) -> None:
        self.next = 0
        self.safe = 0
        self._id = own.id
        self._order = order
        self._regex = _own_regex(own.pattern)
        self._longest_bytes = longest_bytes(own)

    def scan(self, buffer: bytes, base: int, spans: list[Span], *, final: bool, cut: bool) -> None:
        """Look for matches from left to right; they do not overlap."""
        end = len(buffer)
        at = self.next - base
        line = buffer.rfind(b"\n", at) + 1
        settled = end if final else max(at, line, end - self._longest_bytes)
        long_matches = 0
        while (found := self._regex.search(buffer, at)) is not None:
            start = found.start()
            if start >= settled and not final:
                break
            if found.end() - start > self._longest_bytes:
                long_matches += 1
                if long_matches > _LONG_MATCHES_LIMIT:
                    raise RedactionFailed(
                        f"the pattern {self._id!r} matches more than its longest_chars, again and again: bound it"
                    )
                found = self._regex.match(buffer, start, min(end, start + self._longest_bytes))
            if found is None or found.end() == start:
                at = start + 1
            else:
                at = found.end()
                spans.append(Span(base + start, base + at, self._id, self._order))
            if at > end:
                break
        if cut and final:
            tail = _TAIL.search(buffer, max(line, end - self._longest_bytes))
            if tail is not None and tail.end() > tail.start():
                spans.append(Span(base + tail.start(), base + end, self._id, self._order))
        self.next = self.safe = base + min(end, max(at, settled))


_TAIL = compiled(r"[^\x00-\x20]+\z")


def longest_bytes(own: RedactedPattern) -> int:
    """Return how many bytes the longest match may have."""
    return own.longest_chars * _UTF8_BYTES


@lru_cache(maxsize=4096)
def _own_regex(pattern: str) -> Any:
    """Compile a pattern that the policy has checked, so that it matches within a line."""
    options = re2.Options()
    options.max_mem = _LIMIT_MEMORY_BYTES
    options.log_errors = False
    options.never_nl = True
    return re2.compile(b"(?m)" + pattern.encode(), options)


Finder = WellKnownFinder | OwnFinder


def found_in(data: bytes, section: RedactionSection) -> bool:
    """Return whether there is a secret in data that are whole; new finders would tell where."""
    if not data:
        return False
    if section.well_known and any(group.whole.search(data) is not None for group in _groups()):
        return True
    return any(_own_regex(one.pattern).search(data) is not None for one in section.patterns)


def finders(section: RedactionSection) -> list[Finder]:
    """Return new finders, for one stream."""
    first = [WellKnownFinder(group) for group in _groups()] if section.well_known else []
    return [*first, *(OwnFinder(one, order) for order, one in enumerate(section.patterns, len(WELL_KNOWN) + 1))]
