"""The argv of a rule made ready: the first words that a command has, each a text, one of several, or a placeholder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.policy.document import ArgvPrefix as WrittenPrefix
from gateway.policy.document import Placeholder
from gateway.policy.globs import PathGlob, compile_glob
from gateway.policy.programs.paths import absolute
from gateway.policy.regexes import compile_regex
from gateway.policy.shell_line import START, Directories
from gateway.policy.words import Word

ANY_WORD = "*"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class WantedPath:
    """A word that is a path: where it leads from each directory in which the command may run, a glob must match."""

    globs: tuple[PathGlob, ...]

    def surely(self, text: str, cwd: Directories) -> bool:
        """Return whether it is such a path from everywhere. What looks like an option is none."""
        return all(path is not None and self._matches(path) for path in _paths(text, cwd))

    def maybe(self, text: str, cwd: Directories) -> bool:
        """Return whether it could be such a path."""
        return any(path is None or self._matches(path) for path in _paths(text, cwd))

    def _matches(self, path: str) -> bool:
        return any(glob.matches(path) for glob in self.globs)


def _paths(text: str, cwd: Directories) -> tuple[str | None, ...]:
    """Return the paths that a word may name, None for an unknown one."""
    return (None,) if text.startswith("-") else absolute(text, cwd)


@dataclass(frozen=True)
class WantedNumber:
    """A word that is a whole number in a range, written in the usual way."""

    least: int
    most: int

    def surely(self, text: str, _cwd: Directories) -> bool:
        """Return whether it is; 010 is not, some programs read it as octal."""
        return _NUMBER.fullmatch(text) is not None and str(int(text)) == text and self.least <= int(text) <= self.most

    def maybe(self, text: str, _cwd: Directories) -> bool:
        """Return whether a program could read it so."""
        return _NUMBER.fullmatch(text) is not None and (str(int(text)) != text or self.least <= int(text) <= self.most)


@dataclass(frozen=True)
class WantedPattern:
    """A word that a pattern matches as a whole. Only a pattern that begins with a dash stands for options."""

    pattern: Any
    options: bool

    def surely(self, text: str, _cwd: Directories) -> bool:
        """Return whether it matches. What looks like an option does not match `[a-z-]+`."""
        return self._matches(text) and (self.options or not text.startswith("-"))

    def maybe(self, text: str, _cwd: Directories) -> bool:
        """Return whether it could match."""
        return not text.isascii() or self._matches(text)

    def _matches(self, text: str) -> bool:
        try:
            return self.pattern.fullmatch(text.encode()) is not None
        except UnicodeEncodeError:  # text that is not Unicode matches nothing
            return False


@dataclass(frozen=True)
class WantedEnd:
    """No word at all."""


WantedWord = frozenset[str] | WantedPath | WantedNumber | WantedPattern | WantedEnd | None
"""None is one word of any text."""


@dataclass(frozen=True)
class ArgvPrefix:
    """The first words of a command."""

    words: tuple[WantedWord, ...]

    @property
    def programs(self) -> frozenset[str] | None:
        """What the name of the program may be, None for any."""
        first = self.words[0]
        return first if isinstance(first, frozenset) else None

    @property
    def second(self) -> frozenset[str] | None:
        """What the second word must be, None when it may be anything or be missing."""
        second = self.words[1] if len(self.words) > 1 else None
        return second if isinstance(second, frozenset) else None

    def surely(self, words: Sequence[Word], cwd: Directories = START) -> bool:
        """Return whether a command starts with this prefix, whatever the shell makes of the words after it."""
        for place, wanted in enumerate(self.words):
            if isinstance(wanted, WantedEnd):
                return len(words) == place
            text = words[place].literal if place < len(words) else None
            if text is None or not _accepts(wanted, text, cwd):
                return False
        return True

    def maybe(self, words: Sequence[Word], cwd: Directories = START) -> bool:
        """Return whether a command starts with this prefix or might, once the shell has expanded it.

        Options may stand before each word, with or without an argument: `npm --prefix x publish` publishes.
        """
        places = {0}
        for number, wanted in enumerate(self.words):
            following: set[int] = set()
            for place in _past_options(words, places) if number else places:
                word = words[place] if place < len(words) else None
                if isinstance(wanted, WantedEnd):
                    if all(_may_vanish(left) for left in words[place:]):
                        return True
                elif word is not None and _could_accept(wanted, word, cwd, is_program=number == 0):
                    if word.kind in ("glob", "expansion") and not word.one_word:
                        return True
                    following.add(place + 1)
            places = following
        return bool(places)


def _past_options(words: Sequence[Word], places: set[int]) -> list[int]:
    """Return these places and those behind options that stand there, each of which may take the next word."""
    found = set(places)
    pending = list(places)
    while pending:
        place = pending.pop()
        if place < len(words) and words[place].text.startswith("-"):
            takes_next = words[place].kind == "literal" and "=" not in words[place].text
            more = {place + 1, place + 2} if takes_next else {place + 1}
            pending.extend(more - found)
            found |= more
    return sorted(found)


def _accepts(wanted: WantedWord, text: str, cwd: Directories) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, frozenset):
        return text in wanted
    return not isinstance(wanted, WantedEnd) and wanted.surely(text, cwd)


def _could_accept(wanted: WantedWord, word: Word, cwd: Directories, *, is_program: bool) -> bool:
    if word.kind in ("glob", "expansion"):
        return not isinstance(wanted, frozenset) or any(text.startswith(word.prefix) for text in wanted)
    if wanted is None:
        return True
    if isinstance(wanted, frozenset):
        return word.text in wanted or (is_program and word.text.rpartition("/")[2] in wanted)
    return not isinstance(wanted, WantedEnd) and wanted.maybe(word.text, cwd)


def _may_vanish(word: Word) -> bool:
    """Return whether no word at all may take its place."""
    return word.kind == "unknown" or (word.kind == "expansion" and not word.single and not word.prefix)


def compile_argv(written: Iterable[WrittenPrefix]) -> tuple[ArgvPrefix, ...]:
    """Return the prefixes of a rule, ready to match."""
    return tuple(ArgvPrefix(tuple(_wanted(word) for word in prefix)) for prefix in written)


def _wanted(word: str | tuple[str, ...] | Placeholder) -> WantedWord:
    if word == ANY_WORD:
        return None
    if isinstance(word, str):
        return frozenset((word,))
    if isinstance(word, tuple):
        return frozenset(word)
    if word.path is not None:
        return WantedPath(tuple(compile_glob(glob) for glob in word.path))
    if word.number is not None:
        return WantedNumber(word.number.least, word.number.most)
    if word.matches is not None:
        return WantedPattern(compile_regex(word.matches), options=word.matches.lstrip("^(\\").startswith("-"))
    return WantedEnd()
