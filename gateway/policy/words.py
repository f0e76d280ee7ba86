"""Words of a shell command, read from their source text.

A word is understood only in the forms that every POSIX shell reads alike: plain text, '...', "...", backslash before a
printable ASCII character, and expansions whose form says that nothing but text can come of them: $NAME, ${NAME},
${NAME:-text}, ${NAME%pattern}, $1, $?, sums of digits, ~ and the output of commands, which are read too. {a,b} is
expanded by bash and is plain text to dash: such a word is an expansion. Everything else raises Opaque.

Source text is the line's UTF-8 bytes decoded as latin-1, one character a byte, so that positions are offsets of bytes.
"""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

WordKind = Literal["literal", "glob", "expansion", "unknown"]

Substitution = Callable[[int, bool], int]
"""Reads the command substitution at a position, quoted or not, and returns the position behind it. Raises Opaque."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "_@%+:,./-=^]!~")
_GLOB = frozenset("*?[")
_PRINTABLE = frozenset(chr(code) for code in range(0x20, 0x7F))
_ENDS = frozenset(" \t\n;&|<>()")
# A variable, or a sum: a name in a sum could hold text that bash evaluates (x='a[$(rm y)]'). bash takes the second $ of
# $$( for the beginning of something.
_PLAIN_EXPANSION = re.compile(
    r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9?#@*!-]|\$(?![({\[])|\{(?:#?[A-Za-z_][A-Za-z0-9_]*|[0-9@*?#])\})"
    r"|\$\(\([0-9 +*/%-]+\)\)"
)
# ${NAME:-text}, ${NAME%pattern} and the like, up to the text; the others are bash's own.
_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9])(:?[-+?=]|%%?|##?)")
_DEFAULT_TEXT = frozenset(string.ascii_letters + string.digits + " _@%+:,./-=^!*?[]~#")
# Each is one word, quoted or not. `$!` is none before anything ran in the background.
_ONE_WORD = re.compile(r"\$(?:[?#$]|\{[?#]\}|\{#[A-Za-z_][A-Za-z0-9_]*\}|\(\([0-9 +*/%-]+\)\))")
_COMMAND = re.compile(r"\$\((?!\()")
_AFTER_DOLLAR = frozenset(["", " ", ".", ",", ";", ":", ")", "/", "%", "|"])
_LIST = re.compile(r",|\.\.")
_ALL = re.compile(r"\$\{?@")
_TILDE = re.compile(r"~(?:[+-]|[A-Za-z0-9_.-]*)(?=[/:= \t\n;&|<>()]|\Z)")
# Lower-case names are a script's own, except those that programs read.
_OWN = re.compile(r"[a-z][a-z0-9_]*|[A-Z]")
_NOT_OWN = re.compile(r"(npm|pnpm|yarn|bun|pip|uv)_.*|.*_proxy")
_HARMLESS = frozenset(
    """CI CLICOLOR COLUMNS COUNT CUDA_VISIBLE_DEVICES DEBIAN_FRONTEND DEBUG DIR FILE FILES FORCE_COLOR
    GIT_AUTHOR_DATE GIT_AUTHOR_EMAIL GIT_AUTHOR_NAME GIT_COMMITTER_DATE GIT_COMMITTER_EMAIL GIT_COMMITTER_NAME
    GOARCH GOMAXPROCS GOOS LANGUAGE LINES LOG_LEVEL MKL_NUM_THREADS NAME NODE_ENV NO_COLOR OMP_NUM_THREADS OUT
    PIP_NO_INPUT PORT PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONHASHSEED PYTHONIOENCODING PYTHONUNBUFFERED
    PYTHONUTF8 RUST_BACKTRACE RUST_LOG SOURCE_DATE_EPOCH TOKENIZERS_PARALLELISM TZ VERBOSE VERSION
    CARGO_TERM_COLOR PIP_DISABLE_PIP_VERSION_CHECK""".split()  # noqa: SIM905 - one name a line would take fifty
)
# With other character sets bash reads bytes of UTF-8 as blanks, or takes a backslash for half a letter.
_LOCALE = re.compile(r"LANG|LC_[A-Z]+")
_UTF8 = re.compile(r"(C|POSIX|)|(C|[a-z]{2,3}_[A-Z]{2})\.(UTF-8|utf-?8)")


class Opaque(Exception):
    """A piece of a command line that is not understood; str() says why, for people."""


@dataclass(frozen=True)
class Word:
    """One word as it is written. Only a literal word has a text that a program gets; ask for it with `literal`.

    literal: exactly `text` is passed to the program. glob: the shell expands `text` to file names, so one or more
    unknown words take its place. expansion: it holds a variable or the output of a command, so its text is not known;
    with `single` (it is quoted) it is exactly one word, else any number of words, also none. unknown: it was not
    understood, and the line it is in is opaque.

    `prefix` is how the first word that takes the place of a glob or an expansion surely begins.
    """

    text: str
    kind: WordKind = "literal"
    single: bool = False
    prefix: str = ""

    @property
    def literal(self) -> str | None:
        """The text that the program gets, None when that is not known."""
        return self.text if self.kind == "literal" else None

    @property
    def begins(self) -> str:
        """How the first word that takes its place surely begins; all of it where it is known."""
        return self.text if self.kind == "literal" else self.prefix

    @property
    def one_word(self) -> bool:
        """Whether exactly one word takes its place, known or not."""
        return self.kind == "literal" or (self.kind == "expansion" and self.single)


def names(text: str) -> frozenset[str]:
    """Return the names of a table, which are words of a text: one a line would take hundreds."""
    return frozenset(text.split())


def check_assigned(name: str, value: str | None = None) -> None:
    """Raise Opaque for a variable that a line may not set to a value, None for any."""
    if not may_assign(name, value):
        raise Opaque(f"it assigns {name}, which may change what later words run; use a name in lower case")


def _decoded(source: str) -> str:
    """Return the text of source, see the head of this file."""
    return source.encode("latin-1").decode(errors="replace")


class WordScan:
    """One pass over one word, or over text in which expansions stand, that ends at `limit`."""

    def __init__(self, source: str, limit: int, substitution: Substitution) -> None:
        self._source = source
        self._limit = limit
        self._substitution = substitution
        self._text: list[str] = []
        self._prefix: str | None = None  # once it is known
        self._glob = False
        self._expansion = False
        self._many = False
        self._commands = False
        self._braces: list[int] = []  # where an unquoted { or } stands

    def word(self, start: int) -> tuple[Word, int]:
        """Read the word at `start`, which may be empty, and return it and where it ends. Raises Opaque."""
        end = self._read(start)
        if self._braces and _expands(self._source, self._braces, end):
            if self._commands:
                raise Opaque("{ } that expand stand in one word with a command")
            # ~{a,b} becomes ~a and ~b before those are taken for home directories.
            before = self._before_braces if self._prefix is None else min(self._before_braces, self._prefix, key=len)
            self._prefix = before.partition("~")[0]
            self._expansion = self._many = True
        text, prefix = _decoded("".join(self._text)), _decoded(self._prefix or "")
        if self._expansion:
            return Word(text, "expansion", not (self._glob or self._many), prefix), end
        return Word(text, "glob", prefix=prefix) if self._glob else Word(text), end

    def expansion_end(self, position: int, *, quoted: bool = True) -> int | None:
        """Return where the expansion at `position` ends; None if it is a mere $, as text has."""
        ahead = self._source[position + 1 : min(position + 2, self._limit)]
        found = _PLAIN_EXPANSION.match(self._source, position, self._limit)
        if found:
            return found.end()
        if self._source[position] == "`" or ahead == "(":
            return self._substitution(position, quoted)
        if ahead == "{":
            return self._default_end(position)
        if not quoted:
            raise Opaque("a $ outside quotes is not understood")
        if ahead not in _AFTER_DOLLAR:
            seen = _decoded(self._source[position : position + 2])
            raise Opaque(f"{seen!r} in text is not understood; write \\$ for a dollar sign")
        return None

    def _default_end(self, position: int) -> int:
        """Return where ${NAME:-text} or ${NAME%pattern} ends."""
        found = _DEFAULT.match(self._source, position, self._limit)
        if found is None:
            raise Opaque("a ${...} is not ${NAME}, ${#NAME}, ${NAME:-text}, ${NAME%pattern} or the like")
        if found.group(2).endswith("="):
            check_assigned(found.group(1))
        at = found.end()
        while at < self._limit and (character := self._source[at]) != "}":
            if character == "$":
                at = self.expansion_end(at) or at + 1
            elif character in _DEFAULT_TEXT or not character.isascii():
                at += 1
            else:
                raise Opaque(f"{character!r} inside ${{...}} is not understood")
        if at == self._limit:
            raise Opaque("a ${ is not closed")
        return at + 1

    def _read(self, start: int) -> int:
        position = start
        while position < self._limit and (character := self._source[position]) not in _ENDS:
            if character == "'":
                end = self._source.find("'", position + 1, self._limit)
                if end < 0:
                    raise Opaque("a quote is not closed")
                self._text.append(self._source[position + 1 : end])
                position = end + 1
            elif character == '"':
                position = self._double_quoted(position + 1)
            elif character == "\\":
                escaped = self._source[position + 1 : min(position + 2, self._limit)]
                if escaped not in _PRINTABLE or not escaped:
                    raise Opaque("a backslash stands before a line end or an unusual character")
                self._text.append(escaped)
                position += 2
            elif character in "$`":
                position = self._expand(position, quoted=False) or position
            elif character == "~" and (tilde := self._tilde(position, start)):
                position = self._unknown(position, tilde)
            else:
                self._unquoted(position, start)
                position += 1
        return position

    def _unquoted(self, position: int, start: int) -> None:
        """Take in an unquoted character that stands for itself or is a file name pattern. Raises Opaque for others."""
        character = self._source[position]
        if character in "{}":
            if not self._braces:
                self._before_braces = "".join(self._text)
            self._braces.append(position)
        elif character in _GLOB:
            behind = self._source[position + 1 : min(position + 2, self._limit)]
            self._begin_unknown()
            # A lone [ is the program of that name, or an argument; no shell takes it for a pattern.
            self._glob = self._glob or character != "[" or position > start or behind not in {"", *_ENDS}
        elif character not in _PLAIN and character.isascii() and (character != "#" or position == start):
            raise Opaque(f"{character!r} outside quotes is not understood")
        self._text.append(character)

    def _tilde(self, position: int, start: int) -> int | None:
        """Return where a home directory ends. bash takes ~ for one after = and : as well, where other shells do not."""
        if position > start and self._source[position - 1] not in "=:":
            return None
        found = _TILDE.match(self._source, position, self._limit)
        return found.end() if found else None

    def _begin_unknown(self) -> None:
        if self._prefix is None:
            self._prefix = "".join(self._text)

    def _unknown(self, position: int, end: int) -> int:
        self._begin_unknown()
        self._expansion = True
        self._text.append(self._source[position:end])
        return end

    def _expand(self, position: int, *, quoted: bool) -> int | None:
        """Take in the expansion at `position` and return where it ends; None for a mere $."""
        end = self.expansion_end(position, quoted=quoted)
        if end is None:
            return None
        text = self._source[position:end]
        if quoted:
            is_many = _ALL.search(text) is not None and not text.startswith(("$(", "`"))
        else:
            is_many = not _ONE_WORD.fullmatch(text)
        self._many = self._many or is_many
        self._commands = self._commands or "`" in text or _COMMAND.search(text) is not None
        return self._unknown(position, end)

    def _double_quoted(self, position: int) -> int:
        source = self._source
        while position < self._limit:
            character = source[position]
            if character == '"':
                return position + 1
            if character in "$`" and not source.startswith('$"', position):
                end = self._expand(position, quoted=True)
                if end is not None:
                    position = end
                    continue
            elif character == "\\":
                escaped = source[position + 1 : position + 2]
                if escaped == "\n":
                    raise Opaque("a backslash stands before a line end")
                if escaped in ("$", "`", '"', "\\"):
                    position += 1
                    character = escaped
            self._text.append(character)
            position += 1
        raise Opaque("a quote is not closed")


def _expands(source: str, braces: list[int], end: int) -> bool:
    """Return whether bash might expand the braces of a word: between a { and its } are a comma or two dots.

    Braces that do not match are paired by bash in ways of its own: then any list after the first one counts.
    """
    opened: list[int] = []
    for position in braces:
        if source[position] == "{":
            opened.append(position)
        elif not opened:
            return bool(_LIST.search(source, braces[0], end))
        elif _LIST.search(source, opened.pop(), position):
            return True
    return bool(opened) and bool(_LIST.search(source, braces[0], end))


def may_assign(name: str, value: str | None = None) -> bool:
    """Return whether a variable may get a value, None for any, for the shell and for the programs it starts."""
    if _LOCALE.fullmatch(name):
        return value is not None and _UTF8.fullmatch(value) is not None
    if name in _HARMLESS:
        return True
    return bool(_OWN.fullmatch(name)) and not _NOT_OWN.fullmatch(name)
