"""Which file a written path means, seen from the directories that a command may run in."""

from __future__ import annotations

import fnmatch
import posixpath

from gateway.policy.shell_line import Directories
from gateway.policy.words import Word

_NO_FILES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty")
)
_WILDCARDS = "*?["


def is_no_file(path: str) -> bool:
    """Return whether a path names a stream of the command itself, or nothing."""
    return path in _NO_FILES


def absolute(text: str, directories: Directories) -> tuple[str | None, ...]:
    """Return the absolute normalised paths that a literal path may mean. None: it cannot be told."""
    if not text or "\0" in text or ".." in text.split("/"):
        return (None,)
    if text.startswith("/"):
        return (_normal(text),)
    if directories is None:
        return (None,)
    return tuple(dict.fromkeys(_normal(posixpath.join(directory, text)) for directory in directories))


def located(word: Word, directories: Directories) -> tuple[tuple[str | None, bool], ...]:
    """Return the paths that a word may name, each with whether everything below it is meant too."""
    if word.kind == "literal":
        return tuple((path, False) for path in absolute(word.text, directories))
    if word.kind != "glob" or any(_may_climb(part) for part in word.text.split("/")):
        return ((None, False),)
    first = next((place for place, character in enumerate(word.text) if character in _WILDCARDS), len(word.text))
    above = word.text[: word.text.rfind("/", 0, first) + 1]
    return tuple((path, True) for path in absolute(above or ".", directories))


def leads_with_dash(word: Word) -> bool:
    """Return whether a word that is not literal might turn out to be an option."""
    if word.kind == "glob" or word.one_word:
        return not word.prefix or word.prefix.startswith("-")
    return True


def may_be_none(word: Word) -> bool:
    """Return whether no word at all may stand in a word's place."""
    return word.kind != "glob" and not word.one_word


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


def _may_climb(part: str) -> bool:
    """Return whether a part of a glob is `..` or could be expanded to it."""
    return part == ".." or (part.startswith(".") and any(wild in part for wild in _WILDCARDS) and _matches_parent(part))


def _matches_parent(part: str) -> bool:
    # Quoting is lost here, so a bracket is taken for whatever it may hold.
    return "[" in part or fnmatch.fnmatchcase("..", part)
