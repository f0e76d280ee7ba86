"""What a simple command does: the files it uses, the commands it runs; and a call while that is found out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.policy.globs import PathGlob, escaped, may_meet, path_problem, read_glob
from gateway.policy.shell_line import Directories, SimpleCommand, joined
from gateway.policy.words import Word, names

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
# Links of a process to its working directory, to / and to what it has open: /proc/self/cwd/x is a file here.
_LINK = re.compile(r"/proc/[^/]+/(.*/)?(cwd|root|fd|map_files)(/|\Z)", re.DOTALL)
_PROC = read_glob("/proc/*/**")
LIMIT_USES = 1024
"""How many files a command may name, and all commands of a line together."""
TOO_MANY = f"it names more files than {LIMIT_USES}; name fewer at a time"
UNREAD_REASON = "a line does not say which files it uses; use enforcement: kernel, or allow execute without argv"

_GO_BELOW = names("diff du find rg rsync tar tree zip")
_RECURSIVE = re.compile(r"-[A-Za-z]*[rR]|--recursive")
_RECURSIVE_LS = re.compile(r"-[A-Za-z0-9]*R|--recursive")


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
    return tuple(dict.fromkeys(None if _LINK.match(path) or path_problem(path) else path for path in paths))


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


def any_file(why: str, *kinds: Access) -> tuple[FileUse, ...]:
    """Return the uses of a command that may read, list or write any file; all three where no kind is named."""
    return tuple(FileUse(None, kind, why=why) for kind in kinds or ("read", "list", "write"))


class Call:
    """A simple command, and what was found out about it so far.

    `name` is its program's without the directory, `words` are those after it, and it runs in one of `directories`.

    `opaque` says why it might run something that the line does not name, and is None where that is known. A program
    that is not described uses nothing: what it may do is the business of the argv rules. A wrapper runs `commands`, or
    the `script` of a shell; where it `replaces` itself by these it does nothing besides.
    """

    def __init__(self, words: Sequence[Word], directories: Directories) -> None:
        self.program = words[0]
        self.name = self.program.text.rpartition("/")[2]
        self.words = tuple(words[1:])
        self.directories = directories
        self.uses: dict[FileUse, None] = {}
        self.opaque: str | None = None
        self.commands: list[SimpleCommand] = []
        self.script: str | None = None
        self.replaces = False

    def run(self, words: Sequence[Word], *, anywhere: bool = False) -> None:
        """Take in a command that the call runs, where it runs itself or `anywhere`."""
        self.commands.append(SimpleCommand(tuple(words), None if anywhere else self.directories))

    def refuse(self, reason: str) -> None:
        """Say why the call might run another program. The first reason counts."""
        self.opaque = self.opaque or reason

    def lose(self, why: str, *kinds: Access) -> None:
        """Say why it is not known which files the call reads, lists or writes; all three where no kind is named.

        What its words may name is still seen, for rules that forbid it. With `kinds` these are its options: the caller
        takes in what else it names.
        """
        lost = [use for use in any_file(why, *kinds) if use not in self.uses]
        self.uses |= dict.fromkeys(lost)
        below = bool(lost) and self.goes_below
        for word in dict.fromkeys(self.words) if lost else ():
            is_option = word.text.startswith("-")
            text = word.text.partition("=")[2] or word.text[2:] if is_option else word.text
            if text and word.kind in ("literal", "glob") and (is_option or not kinds):
                for use in lost:
                    self.file(Word(text, word.kind), use.access, below=below, possible=True)

    @property
    def goes_below(self) -> bool:
        """Whether the program looks into the directories that it is given."""
        recursive = _RECURSIVE_LS if self.name in ("dir", "ls", "vdir") else _RECURSIVE
        return self.name in _GO_BELOW or any(recursive.match(word.text) for word in self.words)

    def file(
        self, word: Word, access: Access, *, below: bool = False, dash: bool = True, possible: bool = False
    ) -> None:
        """Take in a file. With `dash` the word `-` is the program's input or output and no file."""
        if word.kind == "literal" and ((dash and word.text == "-") or word.text in NO_FILES):
            return
        if len(self.uses) > LIMIT_USES:  # what is not looked at may be anything
            self.uses |= dict.fromkeys(any_file(TOO_MANY))
            return
        self.uses |= dict.fromkeys(located(word, self.directories, access, below=below, possible=possible))

    def files(self, words: Sequence[Word], access: Access, *, below: bool = False, dash: bool = True) -> None:
        """Take in words that are all used in one way."""
        for word in words:
            self.file(word, access, below=below, dash=dash)


Describe = Callable[[Call], None]
"""What looks at a call of one program."""
