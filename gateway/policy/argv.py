"""The argv of a rule made ready: the first words that a command has, each a text, one of several, or a placeholder."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.policy.decision import NO, PERHAPS, YES, Certainty
from gateway.policy.fields import ArgvPrefix as WrittenPrefix
from gateway.policy.fields import Between, Placeholder
from gateway.policy.globs import PathGlob, compile_glob
from gateway.policy.programs.call import absolute, may_be_none
from gateway.policy.regexes import compile_regex
from gateway.policy.shell_line import START, Directories
from gateway.policy.words import Word

ANY_WORD = "*"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def _is_path(globs: tuple[PathGlob, ...], text: str, cwd: Directories) -> Certainty:
    """Return whether a glob matches where a word leads from each directory. What looks like an option is no path."""
    paths = (None,) if text.startswith("-") else absolute(text, cwd)
    matched = [path is None or any(glob.matches(path) for glob in globs) for path in paths]
    if None not in paths and all(matched):
        return YES
    return PERHAPS if any(matched) else NO


def _is_number(between: Between, text: str, _cwd: Directories) -> Certainty:
    """Return whether a word is a whole number in a range; some programs read 010 as octal."""
    if not _NUMBER.fullmatch(text):
        return NO
    if str(int(text)) != text:
        return PERHAPS
    return YES if between.least <= int(text) <= between.most else NO


def _fits(pattern: Any, options: bool, text: str, _cwd: Directories) -> Certainty:
    """Return whether a pattern matches a whole word; `[a-z-]+` surely matches nothing that looks like an option."""
    try:
        matches = pattern.fullmatch(text.encode()) is not None
    except UnicodeEncodeError:  # text that is not Unicode
        return PERHAPS
    if matches and (options or not text.startswith("-")):
        return YES
    return PERHAPS if matches or not text.isascii() else NO


def _no_word(_text: str, _cwd: Directories) -> Certainty:
    return NO


WantedWord = frozenset[str] | Callable[[str, Directories], Certainty] | None
"""One of several texts, what a placeholder says of a text, or None for one word of any text; `_no_word` is the end."""


@dataclass(frozen=True)
class ArgvPrefix:
    """The first words of a command."""

    words: tuple[WantedWord, ...]

    def texts(self, place: int) -> frozenset[str] | None:
        """Return the texts that the word at a place may have, None when it may be anything or be missing."""
        word = self.words[place] if place < len(self.words) else None
        return word if isinstance(word, frozenset) else None

    def surely(self, words: Sequence[Word], cwd: Directories = START) -> bool:
        """Return whether a command starts with this prefix, whatever the shell makes of the words after it."""
        for place, wanted in enumerate(self.words):
            if wanted is _no_word:
                return len(words) == place
            text = words[place].literal if place < len(words) else None
            if text is None or _says(wanted, text, cwd) != YES:
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
                if wanted is _no_word:
                    if all(may_be_none(left) and not left.prefix for left in words[place:]):
                        return True
                elif word is not None and _could_accept(wanted, word, cwd, is_program=number == 0):
                    if word.kind in ("glob", "expansion") and not word.one_word:
                        return True
                    following.add(place + 1)
            places = following
            if not places:
                return False
        return True


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


def _says(wanted: WantedWord, text: str, cwd: Directories) -> Certainty:
    """Return whether a text is a word that is wanted."""
    if isinstance(wanted, frozenset):
        return YES if text in wanted else NO
    return YES if wanted is None else wanted(text, cwd)


def _could_accept(wanted: WantedWord, word: Word, cwd: Directories, *, is_program: bool) -> bool:
    if word.kind in ("glob", "expansion"):
        return not isinstance(wanted, frozenset) or any(text.startswith(word.prefix) for text in wanted)
    texts = {word.text, word.text.rpartition("/")[2]} if is_program else {word.text}
    return any(_says(wanted, text, cwd) != NO for text in texts)


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
        return partial(_is_path, tuple(compile_glob(glob) for glob in word.path))
    if word.number is not None:
        return partial(_is_number, word.number)
    if word.matches is not None:
        # Only a pattern that begins with a dash stands for options.
        return partial(_fits, compile_regex(word.matches), word.matches.lstrip("^(\\").startswith("-"))
    return _no_word
