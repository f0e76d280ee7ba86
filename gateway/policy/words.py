"""Words of a shell command, read from their source text.

A word is understood only in the forms that every POSIX shell reads alike: plain ASCII, '...', "..." without
expansions, and backslash before a printable ASCII character. Everything else raises Opaque.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Literal

WordKind = Literal["literal", "glob", "unknown"]

_PLAIN = frozenset(string.ascii_letters + string.digits + "_@%+:,./-=^]!")
_GLOB = frozenset("*?[")
_PRINTABLE = frozenset(chr(code) for code in range(0x20, 0x7F))


class Opaque(Exception):
    """A piece of a command line that is not understood; str() says why, for people."""


@dataclass(frozen=True)
class Word:
    """One word.

    literal: exactly `text` is passed to the program. glob: the shell expands `text` to file names, so one or more
    unknown words take its place. unknown: it was not understood, and the line it is in is opaque.
    """

    text: str
    kind: WordKind = "literal"


def read_word(source: str) -> Word:
    """Return the word that a shell makes of `source`, which must be exactly one word. Raises Opaque."""
    text: list[str] = []
    glob = False
    position = 0
    while position < len(source):
        character = source[position]
        if character == "'":
            piece, position = _single_quoted(source, position + 1)
            text.append(piece)
        elif character == '"':
            piece, position = _double_quoted(source, position + 1)
            text.append(piece)
        elif character == "\\":
            escaped = source[position + 1 : position + 2]
            if escaped not in _PRINTABLE:
                raise Opaque("a backslash stands before a line end or an unusual character")
            text.append(escaped)
            position += 2
        elif source.startswith("{}", position):
            text.append("{}")
            position += 2
        else:
            _check_plain(source, position)
            glob = glob or character in _GLOB
            text.append(character)
            position += 1
    return Word("".join(text), "glob" if glob else "literal")


def _check_plain(source: str, position: int) -> None:
    """Raise Opaque unless the unquoted character at `position` stands for itself or is a file name pattern."""
    character = source[position]
    before = source[position - 1] if position else ""
    if character in _PLAIN or character in _GLOB:
        return
    if character in "~#" and before.isascii() and before.isalnum():
        return
    if character == "~":
        raise Opaque("~ may stand for a home directory")
    if character in "{}":
        raise Opaque("{ } outside quotes may expand")
    if character in "$`":
        raise Opaque("an expansion ($ or `) is not known before it runs")
    if not character.isascii():
        raise Opaque("a character that is not ASCII stands outside quotes")
    raise Opaque(f"{character!r} outside quotes is not understood")


def _single_quoted(source: str, start: int) -> tuple[str, int]:
    end = source.find("'", start)
    if end < 0:
        raise Opaque("a quote is not closed")
    return source[start:end], end + 1


def _double_quoted(source: str, start: int) -> tuple[str, int]:
    text: list[str] = []
    position = start
    while position < len(source):
        character = source[position]
        if character == '"':
            return "".join(text), position + 1
        if character == "`" or (character == "$" and source[position + 1 : position + 2] not in ('"', " ")):
            raise Opaque("an expansion ($ or `) is not known before it runs")
        if character == "\\":
            escaped = source[position + 1 : position + 2]
            if escaped == "\n":
                raise Opaque("a backslash stands before a line end")
            if escaped in ("$", "`", '"', "\\"):
                position += 1
                character = escaped
        text.append(character)
        position += 1
    raise Opaque("a quote is not closed")
