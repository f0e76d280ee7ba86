"""Which file a written path means, seen from the directories that a command may run in."""

import re
from dataclasses import dataclass, field
from typing import Literal

from gateway.policy.globs import PathGlob, escaped, path_problem, read_glob
from gateway.policy.globs_cover import may_meet
from gateway.policy.shell_line import Directories, joined
from gateway.policy.words import Word

Access = Literal["read", "write", "list"]
NO_FILES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty")
)
"""Streams of the command itself, or nothing."""
_WILDCARD = re.compile(r"[*?\[]")
_ANY = re.compile(r"\[.*\]|\?", re.DOTALL)
_REPEATED = re.compile(r"\*+")
# A part of a pattern that is ".." or may turn out to be. Quoting is lost, so a bracket may hold anything.
_MAY_CLIMB = re.compile(r"\.(\*+|\**[.?]\**|.*\[.*)", re.DOTALL)
_STREAM = re.compile(r"-|/+(dev|proc)/.*", re.DOTALL)
# Links of a process to its working directory, to / and to what it has open.
_LINKS = frozenset({"cwd", "root", "fd", "map_files"})
_PROC = read_glob("/proc/*/**")


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

    `path` is absolute and normalised. With `glob`, a path glob as rules have them, it is whatever that matches and
    `path` is None. With `below` it is a directory and the command may touch anything in it, itself too (`cp -r src`,
    `git add .`). Neither of both: the line does not determine which file it is, and `why` may say more for people.
    `possible`: it is this file only perhaps, so rules may forbid it and none has to allow it.
    """

    path: str | None
    access: Access
    below: bool = False
    possible: bool = False
    glob: str | None = None
    why: str = field(default="", compare=False)


def located(
    word: Word, directories: Directories, access: Access, *, below: bool = False, possible: bool = False
) -> tuple[FileUse, ...]:
    """Return what a word may name; of a pattern that shells read in different ways, all of the directory."""
    if word.kind == "literal":
        return tuple(_use(path, access, below, possible) for path in absolute(word.text, directories))
    wildcard = _WILDCARD.search(word.text) if word.kind == "glob" else None
    if wildcard is None or any(map(_MAY_CLIMB.fullmatch, word.text.split("/"))):
        return (_use(None, access, below, possible),)
    cut = word.text.rfind("/", 0, wildcard.start()) + 1
    glob, found = _as_glob(word.text[cut:]), []
    for directory in absolute(word.text[:cut] or ".", directories):
        meant = _inside(directory, glob) if directory is not None and glob is not None else None
        if meant is None or may_meet(_PROC, meant):
            found.append(_use(directory if meant is None else None, access, below=True, possible=possible))
        else:
            found.append(FileUse(None, access, below, possible, meant.text))
    return tuple(found)


def _use(path: str | None, access: Access, below: bool, possible: bool) -> FileUse:
    if path is None or (below and f"{path}/".startswith("/proc/")):  # there are links to anywhere
        return FileUse(None, access, possible=possible)
    return FileUse(path, access, below, possible)


def _inside(directory: str, glob: str) -> PathGlob | None:
    try:
        return read_glob(f"{escaped(directory).rstrip('/')}/{glob}")
    except ValueError:
        return None


def _as_glob(pattern: str) -> str | None:
    """Return a path glob that matches all that shells may make of a pattern, None where they differ or it is unusual.

    Names with a leading dot are not meant by a wildcard. What was quoted is not known here, and a byte is a character
    to some shells, so `?` and [...] become `*`. A pattern that nothing matches is the name of a file itself.
    """
    parts: list[str] = []
    for part in pattern.split("/"):
        if part in ("", "."):
            continue
        if "**" in part or "\\" in part or part[0] in "!^" or "{" in part or part.rfind("[") > part.rfind("]"):
            return None
        wild = _REPEATED.sub("*", _ANY.sub("*", part))
        if "[" in wild or "]" in wild:
            return None
        # At the start `*` is no dot; where it may be nothing, the letter after it says what the name begins with.
        hides = wild == "*" or wild.startswith("*.")
        parts.append(f"[!.]{wild}" if hides else wild)
    return "/".join(parts) or None


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
