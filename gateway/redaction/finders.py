"""Where the secrets are: one finder for the well-known formats, one for each pattern of a policy.

A finder is given a buffer again and again, each time with more bytes at its end, and adds the spans it is sure of. What
it finds is the same however the bytes are cut into pieces. Positions are absolute: `base` is where the buffer begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import re2

from gateway.policy.document import RedactedPattern
from gateway.redaction.patterns import LEAD_LIMIT_BYTES, WELL_KNOWN, SecretFormat, compiled

_UTF8_BYTES = 4
_LIMIT_MEMORY_BYTES = 8 * 1024 * 1024
# How often one call may look at a match that is longer than its pattern says: each look is linear in the buffer.
_LONG_MATCHES_LIMIT = 1000


class RedactionFailed(Exception):
    """It cannot be told what to take out; nothing must be shown."""


@dataclass(eq=False, slots=True)
class Span:
    """Bytes from `start` up to `end` that are a secret of the kind `id`; `order` says which finder counts first."""

    start: int
    end: int
    id: str
    order: int
    open: bool = False


class Finder(Protocol):
    """Finds secrets. `next` is the first byte it will look at again, `safe` where what it does not know yet begins."""

    next: int
    safe: int

    def scan(self, buffer: bytes, base: int, spans: list[Span], *, final: bool, cut: bool) -> None:
        """Add the spans of the buffer. With `final` nothing follows; with `cut` something did, and is not known."""
        ...


@lru_cache(maxsize=1)
def _leads() -> Any:
    return compiled("|".join(f"(?:{one.lead})" for one in WELL_KNOWN))


def _led_by(buffer: bytes, start: int) -> tuple[int, SecretFormat]:
    """Return the format whose lead-in is there. Groups in the one large pattern would make each match dear."""
    first = buffer[start : start + 1].lower()
    for order, secret in _by_first_byte()[first]:
        if secret.lead_regex.match(buffer, start) is not None:
            return order, secret
    raise RedactionFailed("a lead-in that no format has")


@lru_cache(maxsize=1)
def _by_first_byte() -> Mapping[bytes, Sequence[tuple[int, SecretFormat]]]:
    table: dict[bytes, list[tuple[int, SecretFormat]]] = {}
    for order, secret in enumerate(WELL_KNOWN, start=1):
        for first in secret.first:
            table.setdefault(first.encode().lower(), []).append((order, secret))
    return table


class WellKnownFinder:
    """Finds secrets in well-known formats. A run that goes on with the next bytes is an open span until it ends."""

    def __init__(self) -> None:
        self.next = 0
        self.safe = 0
        self._open: tuple[SecretFormat, Span] | None = None

    def scan(self, buffer: bytes, base: int, spans: list[Span], *, final: bool, cut: bool) -> None:
        """Look for lead-ins, and judge what follows each."""
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
        leads = _leads()
        while (lead := leads.search(buffer, at)) is not None:
            order, secret = _led_by(buffer, lead.start())
            start = lead.end()
            if secret.before and _goes_without(secret, buffer, start):
                at = lead.start() + 1
                continue
            # No further than it takes to tell: candidates in one long run must not each walk all of it.
            run_end, goes_on = _run(secret, buffer, start, final=final, limit=start + secret.within_bytes + 16)
            is_secret = _is_secret(secret, buffer, start, run_end, goes_on=goes_on)
            if is_secret:
                run_end, goes_on = _run(secret, buffer, start, final=final)
            if is_secret is None and not final:
                self.next, self.safe = base + lead.start(), base + start
                return
            half = cut and run_end == end and end - start <= secret.within_bytes
            if (is_secret or half) and run_end > start:
                span = Span(base + start, base + run_end, secret.id, order)
                spans.append(span)
                if goes_on:
                    span.open = True
                    self._open = (secret, span)
                    self.next = self.safe = base + run_end
                    return
            # What is before a password in a URL may be a token; any other lead-in holds nothing.
            at = run_end if is_secret and not secret.before else lead.start() + 1
        self.next = base + max(at, end - LEAD_LIMIT_BYTES)
        self.safe = base + end


def _goes_without(secret: SecretFormat, buffer: bytes, start: int) -> bool:
    """Return whether the byte that must follow is nowhere near: the usual case of a URL, and cheap to tell."""
    limit = start + secret.within_bytes + 1
    return limit <= len(buffer) and buffer.find(secret.before, start, limit) < 0


def _run(secret: SecretFormat, buffer: bytes, start: int, *, final: bool, limit: int | None = None) -> tuple[int, bool]:
    """Return where the run from `start` ends, at `limit` at the latest, and whether more bytes could make it longer."""
    end: int = secret.run_regex.match(buffer, start, limit).end()
    if secret.stop:
        stop = buffer.find(secret.stop, start, end)
        if stop >= 0:
            return stop, False
    if end < len(buffer) or final:
        return end, False
    for length in range(min(len(secret.stop) - 1, end - start), 0, -1):
        if buffer.endswith(secret.stop[:length]):
            return end - length, True
    return end, True


def _is_secret(secret: SecretFormat, buffer: bytes, start: int, end: int, *, goes_on: bool) -> bool | None:
    """Return whether the run is a secret; None while more bytes could tell."""
    size_bytes = end - start
    begins = secret.check_regex.match(buffer, start, min(end, start + secret.within_bytes)) is not None
    if secret.before:
        if size_bytes > secret.within_bytes or (size_bytes and not begins):
            return False
        return None if goes_on else begins and buffer.startswith(secret.before, end)
    if begins:
        return True
    return None if goes_on and size_bytes < secret.within_bytes else False


class OwnFinder:
    """Finds what a policy's own pattern matches, within a line, ^ and $ being the line's.

    Of a match that is longer than the longest there is, as the policy says, so much is tried. While a line has not
    ended, its last bytes are held back: no more than a match may have.
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


def finders(*, well_known: bool, own: Sequence[RedactedPattern]) -> list[Finder]:
    """Return new finders, for one stream."""
    first: list[Finder] = [WellKnownFinder()] if well_known else []
    return [*first, *(OwnFinder(one, len(WELL_KNOWN) + 1 + place) for place, one in enumerate(own))]
