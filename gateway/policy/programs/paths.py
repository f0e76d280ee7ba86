"""Which file a written path means, seen from the directories that a command may run in."""

import re
from dataclasses import dataclass, field
from typing import Literal

from gateway.policy.globs import path_problem
from gateway.policy.shell_line import Directories, joined
from gateway.policy.words import Word

Access = Literal["read", "write", "list"]
NO_FILES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty")
)
"""Streams of the command itself, or nothing."""
_WILDCARDS = re.compile(r"[*?\[]")
# A part of a pattern that may turn out to be "..".
_MAY_CLIMB = re.compile(r"\.[.*?\[]")
_STREAM = re.compile(r"-|/+(dev|proc)/.*", re.DOTALL)
# Links of a process to its working directory, to / and to what it has open.
_LINKS = frozenset({"cwd", "root", "fd", "map_files"})


def is_stream(path: str) -> bool:
    """Return whether a script of this name may be what the program reads as its input."""
    return _STREAM.fullmatch(path) is not None


def absolute(text: str, directories: Directories) -> tuple[str | None, ...]:
    """Return the absolute normalised paths that a literal path may mean. None: it cannot be determined."""
    if not text or "\0" in text or ".." in text.split("/"):
        return (None,)
    if directories is None and not text.startswith("/"):
        return (None,)
    paths = (joined(directory, text) for directory in directories or ("/",))
    return tuple(dict.fromkeys(None if _is_elsewhere(path) or path_problem(path) else path for path in paths))


@dataclass(frozen=True)
class FileUse:
    """A file that a command opens by what is written in it.

    `path` is absolute and normalised, None where the line does not determine which file it is: `why` may say more for
    people. With `below` it is a directory and the command may touch anything in it, itself too (`cp -r src`, `git add
    .`). `possible`: it is this file only perhaps, so rules may forbid it and none has to allow it.
    """

    path: str | None
    access: Access
    below: bool = False
    possible: bool = False
    why: str = field(default="", compare=False)


def located(
    word: Word, directories: Directories, access: Access, *, below: bool = False, possible: bool = False
) -> tuple[FileUse, ...]:
    """Return what a word may name. A pattern may name all that is below the directory before it."""
    text = word.text
    if word.kind == "glob" and (wildcard := _WILDCARDS.search(text)):
        cut = text.rfind("/", 0, wildcard.start()) + 1
        if any(_MAY_CLIMB.match(part) for part in text[cut:].split("/")):
            return (FileUse(None, access, possible=possible),)
        below, text = True, text[:cut] or "."
    elif word.kind != "literal":
        return (FileUse(None, access, possible=possible),)
    paths = absolute(text, directories)
    # Below /proc there are links to anywhere.
    known = (None if below and path is not None and f"{path}/".startswith("/proc/") else path for path in paths)
    return tuple(FileUse(path, access, below and path is not None, possible) for path in known)


def leads_with_dash(word: Word) -> bool:
    """Return whether a word that is not literal might turn out to be an option."""
    if word.text.startswith("~") and word.one_word:
        return False  # a home directory
    if word.kind == "glob" or word.one_word:
        return not word.prefix or word.prefix.startswith("-")
    return True


def may_be_none(word: Word) -> bool:
    """Return whether no word at all may stand in a word's place."""
    return word.kind != "glob" and not word.one_word


def _is_elsewhere(path: str) -> bool:
    """Return whether a path leads through a link of a process: /proc/self/cwd/x is a file here."""
    return path.startswith("/proc/") and not _LINKS.isdisjoint(path.split("/")[3:])
