"""What file systems and shells give back: frozen values that satisfy agent/filesystem.py without importing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

EntryType = Literal["file", "directory", "symlink", "other"]
OutputStream = Literal["stdout", "stderr"]
OnOutput = Callable[[OutputStream, bytes], None]

WORKSPACE = "/workspace"
# Spilled output and other bookkeeping; glob and grep skip it unless they are asked to search inside it.
PRIVATE_DIRECTORY = "/workspace/.airlock"
OUTPUT_DIRECTORY = f"{PRIVATE_DIRECTORY}/output"
# Output of background processes that their rings do not hold.
PROCESSES_DIRECTORY = f"{PRIVATE_DIRECTORY}/processes"


@dataclass(frozen=True, slots=True)
class Entry:
    """A path: `name` is the bare name for ls and the absolute path elsewhere."""

    name: str
    type: EntryType
    size_bytes: int
    mode: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class EntriesPage:
    """A page of entries; `total` is how many there are (at least, for glob).

    `unsearched` counts the directories that glob could not read or that lie too deep.
    """

    entries: tuple[Entry, ...]
    total: int
    more: bool
    unsearched: int = 0


@dataclass(frozen=True, slots=True)
class LinesPage:
    """A page of lines with their ends; `next_byte` is the offset just after it, `cut` says it ends inside a line."""

    data: bytes
    lines: int
    more: bool
    binary: bool
    size_bytes: int
    next_byte: int
    cut: bool


@dataclass(frozen=True, slots=True)
class EditResult:
    """How many matches were replaced (0: not found, nothing written) and how many are left."""

    replaced: int
    left: int


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A matching line; `line` counts from 1; `text` is 1,000 bytes at most, without the line's end."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class GrepPage:
    """A page of matches, and how many files were passed over for being binary or having hard links.

    `unsearched` counts the files and directories that could not be read or that lie too deep.
    """

    matches: tuple[GrepMatch, ...]
    more: bool
    timed_out: bool
    binary_files: int
    hard_linked_files: int = 0
    unsearched: int = 0


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Output in order of arrival."""

    stream: OutputStream
    data: bytes


@dataclass(frozen=True, slots=True)
class SpilledOutput:
    """Where output that was too large is, and what is there; every figure is the sandbox's word, within bounds."""

    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended; see agent/filesystem.py for the outcomes. `duration_us` is wall time in the sandbox."""

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    output: tuple[OutputPiece, ...] = ()
    tail: tuple[OutputPiece, ...] = ()
    evicted: SpilledOutput | None = None
    output_bytes: int = 0
    message: str = ""
    duration_us: int = 0
