"""Makes text from outside safe for a terminal: no cursor moves, hidden characters or reversed direction."""

import unicodedata

# A control character is shown as its picture: ESC as ␛.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_BLANK = str.maketrans("\t\n", "  ")
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: object, limit: int | None = None) -> str:
    """Return text without control or hidden characters that can always be encoded; tabs and newlines stay.

    Only the first `limit` characters are looked at, since text that has to be changed costs time for each character.
    """
    plain = str(text)[:limit]
    if plain.translate(_BLANK).isprintable():
        return plain
    pictured = plain.replace("\r\n", "\n").translate(_PICTURES)
    return "".join("\ufffd" if is_unprintable(character) else character for character in pictured)


def is_unprintable(character: str) -> bool:
    """Return whether a terminal might act on a character instead of displaying it; tabs and newlines are fine."""
    return character not in "\t\n" and unicodedata.category(character) in _UNPRINTABLE
