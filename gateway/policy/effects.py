"""What a simple command does besides running: the files it reads and writes, and the hosts it speaks to."""

from dataclasses import dataclass
from typing import Literal

Access = Literal["read", "write", "list"]


@dataclass(frozen=True)
class FileUse:
    """A file that a command opens by what is written in it.

    `path` is absolute and normalised. With `glob`, a path glob as rules have them, it is whatever that matches and
    `path` is None. With `below` it is a directory and the command may touch anything in it, itself too (`cp -r src`,
    `git add .`). Neither of both: the line does not determine which file it is. `possible`: it is this file only if
    another one turns out to be a directory, so rules may forbid it and none has to allow it.
    """

    path: str | None
    access: Access
    below: bool = False
    possible: bool = False
    glob: str | None = None


@dataclass(frozen=True)
class HostUse:
    """A host that a command connects to. None: which one cannot be determined from the line."""

    host: str | None
    port: int | None = None


@dataclass(frozen=True)
class Effects:
    """All that is known of one simple command.

    `opaque` says why it might run something that the line does not name; `files_unknown` why files or hosts might be
    missing here, which matters only where the line is read for these. Both are None where all is known. A program that
    is not described here has no effects: what it may do is the business of the argv rules.
    """

    files: tuple[FileUse, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    opaque: str | None = None
    files_unknown: str | None = None


NO_EFFECTS = Effects()
