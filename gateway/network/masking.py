"""Masks secrets in what comes back from a server, in the forms that servers echo them in; lengths stay."""

import base64
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from html.entities import html5

# What escapes begin with: of a URL, of a string in JSON or JavaScript, of HTML.
_LEADS = "%\\&"
# Where a line of Base64 ends, in a JSON string, too.
_BREAKS = (b"", b"\n", b"\r\n", rb"\n", rb"\r\n")
_IN_URLS = {"+": (b"-",), "/": (b"_",)}
_ENTITIES: dict[str, list[str]] = {}
for _name, _character in html5.items():
    if _name.endswith(";") and _character.isascii():
        _ENTITIES.setdefault(_character, []).append(f"&{_name}")
# So much of a form is searched for by a regular expression, which takes long to compile.
_HEAD_PARTS = 16
_RUN_BYTES = 64
_BEGUN, _OTHER = -1, -2

Ways = tuple[bytes, ...]
"""Texts of which none is the start of another."""


class Form:
    """How servers write a secret: in each place one of several texts."""

    def __init__(self, places: Iterable[Ways]) -> None:
        self._parts: list[Ways] = []
        last: Ways = ()
        for ways in places:
            if len(ways) == len(last) == 1 and len(last[0]) < _RUN_BYTES:
                last = self._parts[-1] = (last[0] + ways[0],)
            else:
                self._parts.append(ways)
                last = ways
        head = [b"(?:%b)" % b"|".join(map(re.escape, ways)) for ways in self._parts[:_HEAD_PARTS]]
        self._head = re.compile(b"".join(head))
        self._fixed = max((ways[0] for ways in self._parts if len(ways) == 1), key=len, default=b"")
        self._start = re.compile(b"[%b]" % b"".join(re.escape(way[:1]) for way in self._parts[0]))
        longest = [max(map(len, ways)) for ways in self._parts]
        self._longest_head, self._longest = sum(longest[:_HEAD_PARTS]), sum(longest)

    def found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield from where to where it stands."""
        if self._fixed not in data:  # at once, while the search tries each escape
            return iter(())
        return ((start, end) for start, end in self._headed(data, 0) if end >= 0)

    def begun(self, data: bytes) -> int:
        """Return where, at the end, it begins and may go on; the end if nowhere."""
        headed = self._headed(data, max(0, len(data) - self._longest))
        first = next((start for start, end in headed if end == _BEGUN), len(data))
        for found in self._start.finditer(data, max(0, len(data) - self._longest_head), first):
            if self._followed(data, found.start(), 0) == _BEGUN:
                return found.start()
        return first

    def _headed(self, data: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield where its head stands, and what _followed returns of the rest."""
        found = self._head.search(data, at)
        while found is not None:
            yield found.start(), self._followed(data, found.end(), _HEAD_PARTS)
            found = self._head.search(data, found.start() + 1)

    def _followed(self, data: bytes, at: int, part: int) -> int:
        """Return where it ends if it goes on with a part; _BEGUN if the data ends before, _OTHER if it does not."""
        for number in range(part, len(self._parts)):
            for way in self._parts[number]:
                if data.startswith(way, at):
                    at += len(way)
                    break
            else:
                if len(data) - at >= _RUN_BYTES:
                    return _OTHER
                return _BEGUN if any(way.startswith(data[at:]) for way in self._parts[number]) else _OTHER
        return at


def forms(secret: str) -> frozenset[Form]:
    """Return a secret as servers may write it: plain, escaped, in Base64 (within other text too) and in hex."""
    plain = secret.encode("ascii")
    found: list[tuple[Ways, ...]] = [tuple((character.encode(),) for character in secret)]
    found += [tuple(_ways(character, lead) for character in secret) for lead in _LEADS]
    found.append(tuple(tuple({digit.encode(): 1, digit.upper().encode(): 1}) for digit in plain.hex()))
    found += [_within_base64(plain, before) for before in range(3)]
    return frozenset(map(Form, dict.fromkeys(found)))


@lru_cache(maxsize=512)
def _ways(character: str, escaped: str) -> Ways:
    """Return the ways to write a character where `escaped`, which escapes begin with, does not stand for itself.

    The others that escapes begin with do, and there escapes of themselves are not read.
    """
    if character.isalnum():
        return (character.encode(),)
    code = ord(character)
    digits = (f"{code:02x}", f"{code:02X}")
    escapes = {
        "%": [f"%{two}" for two in digits] + (["+"] if character == " " else []),
        "\\": [f"\\{character}", *(f"{start}{two}" for start in ("\\x", "\\u00") for two in digits)],
        "&": [
            *_ENTITIES.get(character, ()),
            *(f"&#{'0' * zeros}{code};" for zeros in range(4)),
            *(f"&#{x}{zeros}{two};" for x in "xX" for zeros in ("", "00") for two in digits),
        ],
    }
    ways = [] if character == escaped else [character]
    for lead, texts in escapes.items():
        if lead != character or lead == escaped:
            ways += texts
    return tuple(dict.fromkeys(way.encode() for way in ways))


def _within_base64(plain: bytes, before: int) -> tuple[Ways, ...]:
    """Return what Base64 makes of bytes that have so many before them (mod 3), without what depends on neighbours."""
    coded = base64.b64encode(bytes(before) + plain).decode()
    end = (before + len(plain)) * 8 // 6
    own = coded[-(-before * 8 // 6) : end]
    return _coded_ways(own[0]), *map(_coded_ways_after_break, own[1:])


@lru_cache(maxsize=64)
def _coded_ways(character: str) -> Ways:
    return (*_ways(character, ""), *_IN_URLS.get(character, ()))


@lru_cache(maxsize=64)
def _coded_ways_after_break(character: str) -> Ways:
    return tuple(ending + way for ending in _BREAKS for way in _coded_ways(character))


class Masked:
    """A stream in which secrets are masked, however it is cut. Keeps back no more than the start of a secret."""

    def __init__(self, secrets: Iterable[Form]) -> None:
        self._secrets = tuple(secrets)
        self._kept = b""
        # So much at the start of what is kept belongs to a secret that began before.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown by now."""
        data = self._kept + data
        cut = min((secret.begun(data) for secret in self._secrets), default=len(data))
        found = self._found(data)
        ends = [self._covered, *(end for start, end in found if start < cut)]
        self._covered = max(0, max(ends) - cut)
        self._kept = data[cut:]
        return _starred(data, found)[:cut]

    def flush(self) -> bytes:
        """Return the rest."""
        rest = _starred(self._kept, self._found(self._kept))
        self._kept, self._covered = b"", 0
        return rest

    def masked(self, data: bytes) -> bytes:
        """Return bytes that are whole."""
        return _starred(data, [place for secret in self._secrets for place in secret.found(data)])

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        return [(0, self._covered), *(place for secret in self._secrets for place in secret.found(data))]


def _starred(data: bytes, places: Iterable[tuple[int, int]]) -> bytes:
    shown = bytearray(data)
    for start, end in places:
        shown[start:end] = b"*" * (end - start)
    return bytes(shown)
