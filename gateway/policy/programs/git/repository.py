"""What the words of a git command mean: its options, its revisions, and the files of the work tree that limit it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.policy.programs.call import Call
from gateway.policy.programs.options import Parsed, compile_options, read_options
from gateway.policy.words import Word

_SUFFIX = r"(?:~\d*|\^\d*|@\{(?:-?\d+|u|upstream|push)\}|\^\{(?:commit|tree)?\})"
_NAME = re.compile(rf"\^?(?:@|[A-Za-z0-9_./][A-Za-z0-9_./+-]*)?{_SUFFIX}*")
# Also what git describe prints. It may be the hash of any object, so of a directory or a file too, whose place in the
# work tree cannot be determined; only what a parent is taken of is surely a commit.
_HASH = re.compile(r"(?:.*-g)?[0-9a-fA-F]{4,}(?!~|\^\d|\^\^|\^$)(?:[\^@].*)?", re.DOTALL)
_INDEX = re.compile(r":(?:[0-3]:)?([A-Za-z0-9_.][^\0]*)", re.DOTALL)


@dataclass(frozen=True)
class Given:
    """The words of a subcommand. `paths` are those after `--`, None where there is no `--`."""

    parsed: Parsed
    operands: list[Word]
    paths: list[Word] | None

    @property
    def all(self) -> list[Word]:
        """Return all words that are no options."""
        return [*self.operands, *(self.paths or [])]

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given."""
        return self.parsed.has(*names)


def read_given(call: Call, words: Sequence[Word], options: str) -> Given:
    """Take the words of a subcommand apart, with the only options that it may have; an argument gets its role."""
    dashes = next((place for place, word in enumerate(words) if word.literal == "--"), None)
    known = compile_options(options)
    parsed = read_options(call, known, words[:dashes], runs=True)
    for name, value in parsed.given:
        if value is None:
            continue
        if not value.one_word:
            call.refuse(f"{name} of git has an argument that is not one word; quote it")
        if known.known[name].role:
            role = known.known[name].role
            call.file(value, role, dash=role == "read")
    return Given(parsed, parsed.operands, None if dashes is None else list(words[dashes + 1 :]))


def revision(call: Call, word: Word, role: str = "read_below") -> bool:
    """Take in a revision, which may also name a file or a directory of one. Return whether it does by its path.

    `role` is what is done with that path. What is not plainly REV or REV:PATH may mean any file that the repository
    has.
    """
    if word.kind != "literal":
        everything(call, "read_below")
        return False
    text = word.text
    before, colon, path = text.partition(":")
    if not colon:
        if not is_plain(text):
            everything(call, "read_below")
        return False
    index = _INDEX.fullmatch(text)
    if index is not None:
        path = index.group(1)
    elif not before or not is_plain(before):
        path = ""
    if not path or ".." in text or path.startswith("/"):
        everything(call, "read_below")
        return False
    _shown(call, path, role)
    return True


def is_plain(text: str) -> bool:
    """Return whether text surely is the name of a commit, or of a range of them."""
    return all(_NAME.fullmatch(part) and not _HASH.fullmatch(part.lstrip("^")) for part in re.split(r"\.{2,3}", text))


def limits(call: Call, words: Sequence[Word], role: str) -> None:
    """Take in the patterns that limit a subcommand to some files; without any it is about all of them."""
    # A leading colon has a meaning of its own (:/ is the top, :! is all but), and a backslash makes a pattern.
    if not words or any(word.kind == "literal" and (word.text[:1] in (":", "") or "\\" in word.text) for word in words):
        everything(call, role)
        return
    for word in words:
        # git expands quoted patterns too.
        wild = word.kind == "literal" and any(mark in word.text for mark in "*?[")
        call.file(Word(word.text, "glob") if wild else word, role, dash=False)


def everything(call: Call, role: str) -> None:
    """Take in all that may be in the work tree, of which only a directory somewhere inside is known."""
    if call.directories is None:
        call.unknown(role)
        return
    for directory in call.directories:
        call.file(Word("/" + directory.lstrip("/").partition("/")[0]), role)


def _shown(call: Call, path: str, role: str) -> None:
    """Take in the path of REVISION:PATH, which is seen from the top of the work tree: any directory above."""
    call.file(Word(path), role, dash=False)
    for directory in call.directories or ():
        parts = directory.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            call.file(Word(f"/{'/'.join(parts[:count])}/{path}"), role, dash=False)
    if call.directories is None:
        call.unknown(role)
