"""Which file a written path means, seen from the directories that a command may run in."""

import re
from typing import NamedTuple

from gateway.policy.globs import escaped, path_problem, read_glob
from gateway.policy.globs_cover import may_meet
from gateway.policy.shell_line import Directories, joined
from gateway.policy.words import Word

NO_FILES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty")
)
"""Streams of the command itself, or nothing."""
_WILDCARDS = "*?["
_ANY = re.compile(r"\[.*\]|\?", re.DOTALL)
_REPEATED = re.compile(r"\*+")
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


class Place(NamedTuple):
    """What a word may name: a path, or what a glob matches, or with neither what cannot be determined.

    `below`: it is everything below the path.
    """

    path: str | None
    glob: str | None = None
    below: bool = False


_UNRECORDED = Place(None)


def located(word: Word, directories: Directories) -> tuple[Place, ...]:
    """Return what a word may name."""
    if word.kind == "literal":
        return tuple(Place(path) for path in absolute(word.text, directories))
    if word.kind != "glob" or any(_may_climb(part) for part in word.text.split("/")):
        return (_UNRECORDED,)
    first = next((place for place, character in enumerate(word.text) if character in _WILDCARDS), len(word.text))
    cut = word.text.rfind("/", 0, first) + 1
    above, rest = absolute(word.text[:cut] or ".", directories), word.text[cut:]
    return tuple(_inside(path, _as_glob(rest)) for path in above)


def _inside(directory: str | None, glob: str | None) -> Place:
    """Return what a relative glob matches in a directory, all of the directory where it is none."""
    if directory is None:
        return _UNRECORDED
    if glob is not None:
        text = f"{escaped(directory).rstrip('/')}/{glob}"
        try:
            meant = read_glob(text)
        except ValueError:
            return Place(directory, below=True)
        return _UNRECORDED if may_meet(_PROC, meant) else Place(None, text)
    return Place(directory, below=True)


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


def _may_climb(part: str) -> bool:
    """Return whether a part of a glob is `..` or could be expanded to it."""
    if part == ".." or not part.startswith("."):
        return part == ".."
    # Quoting is lost here, so a bracket is taken for whatever it may hold.
    rest = part.replace("*", "")
    is_wild = any(wild in part for wild in _WILDCARDS)
    return is_wild and ("[" in part or (len(rest) <= len("..") and set(rest) <= set(".?")))
