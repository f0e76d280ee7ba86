"""What a sandbox offers, however it is reached: its files, its shell, its background processes, its network.

First the frozen values that they take and give back, every figure the sandbox's word within bounds; then the protocols.

RemoteFS, RemoteShell and RemoteProcesses satisfy these through a daemon, LocalFS on this machine. agent/filesystem.py
asks for less of a file system and of a shell, and does not import these: what satisfies these satisfies it.

Every method raises SandboxError subclasses: FileError for what a kernel refuses, DaemonLost when the sandbox is gone.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from sandbox.file_rules import FileRules

EntryType = Literal["file", "directory", "symlink", "other"]
OutputStream = Literal["stdout", "stderr"]
OnOutput = Callable[[OutputStream, bytes], None]

WORKSPACE = "/workspace"
# Spilled output and other bookkeeping; glob and grep skip it unless they are asked to search inside it.
PRIVATE_DIRECTORY = "/workspace/.airlock"
OUTPUT_DIRECTORY = f"{PRIVATE_DIRECTORY}/output"
# Output of background processes that their rings do not hold.
PROCESSES_DIRECTORY = f"{PRIVATE_DIRECTORY}/processes"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


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
    """How a program ended; see agent/filesystem.py for the outcomes."""

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    output: tuple[OutputPiece, ...] = ()
    tail: tuple[OutputPiece, ...] = ()
    evicted: SpilledOutput | None = None
    output_bytes: int = 0
    message: str = ""


OnProgramOutput = Callable[[OutputStream, bytes], Awaitable[None]]
"""Called with each piece of a program's output, in order; the program waits for it."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program to run to its end: `env` is added to the sandbox's environment, an empty `cwd` is the workspace.

    After `timeout_s`, or past `output_limit_bytes` of output, everything it started is killed.
    """

    argv: Sequence[bytes]
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    timeout_s: float
    output_limit_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A background process to start under `id`: 1 to 64 of A-Z a-z 0-9 _ -.

    `env` is added to the sandbox's environment, an empty `cwd` is the workspace. `rows` and `columns` apply to a
    `terminal`. At `timeout_s`, 7 days at most, everything it started is killed; None sets no limit. With `ring_bytes`
    only the newest so many bytes of a stream are kept, in memory; 0 keeps the usual ones, and more in a file.
    """

    id: str
    argv: Sequence[bytes]
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    terminal: bool = False
    rows: int = 24
    columns: int = 80
    stdin: bool = False
    merge_stderr: bool = False
    timeout_s: float | None = None
    ring_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """One stream of a background process.

    `size_bytes` were written so far; bytes from `ring_offset` on are in memory. `path` is the file that has the
    output from its first byte, `path_bytes` of it; it is empty while memory holds everything. `closed` says that no
    process can write to the stream any more.
    """

    size_bytes: int
    ring_offset: int
    path: str
    path_bytes: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A background process, running or over.

    `argv` is cut at 4,096 bytes. `outcome` is None while it runs, else as in agent/filesystem.py; `exit_code` is set
    for exited and `signal` for signalled. `rows` and `columns` are 0 without a terminal. `stderr` is None when stderr
    goes where stdout does. `tree` counts the live processes it started, itself included, where the call looked.
    `stdin_taken_bytes` is what its stdin has taken, with a terminal's end-of-file characters.
    """

    id: str
    pid: int
    argv: tuple[bytes, ...]
    running: bool
    outcome: str | None
    exit_code: int | None
    signal: int | None
    started_ns: int
    duration_us: int
    terminal: bool
    rows: int
    columns: int
    stdin_open: bool
    stdout: ProcessOutput
    stderr: ProcessOutput | None
    tree: int
    stdin_taken_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessList:
    """Background processes, the oldest first, and how many processes earlier commands left behind (`strays`)."""

    processes: tuple[Process, ...]
    strays: int


@dataclass(frozen=True, slots=True)
class ProcessPage:
    """A page of output from `offset`, which is more than asked for when bytes in between are lost.

    `end` says that the stream is closed and this page reaches its end; `size_bytes` were written so far.
    """

    data: bytes
    offset: int
    end: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program with streams ended; see agent/filesystem.py for the outcomes.

    `errno` is set for failed_to_start where the kernel gave one; `message` says what the outcome alone does not.
    `output_bytes` counts both streams, `duration_us` is wall time in the sandbox.
    """

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    errno: int | None = None
    message: str = ""
    output_bytes: int = 0
    duration_us: int = 0


class FileSystem(Protocol):
    """The files of a sandbox, by absolute paths. No method follows a symbolic link."""

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage: ...
    async def stat(self, path: str) -> Entry: ...
    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]: ...
    async def read_lines(
        self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536
    ) -> LinesPage: ...
    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry: ...
    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult: ...
    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage: ...
    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage: ...
    async def mkdir(self, path: str) -> None: ...
    async def remove(self, path: str, *, recursive: bool = False) -> None: ...
    async def rename(self, path: str, new_path: str) -> None: ...


class Shell(Protocol):
    """Runs commands and programs; cancelling the await kills everything they started. No outcome is an exception."""

    def under(self, rules: FileRules | None, env: Mapping[str, str] = NO_VARIABLES) -> Shell:
        """Return this shell with file rules enforced on everything it starts, and `env` added for it."""

    async def execute(  # noqa: PLR0913 - how a line runs, and how much of its output is shown
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
        context: object = None,
    ) -> ExecResult:
        """Run `/bin/sh -c command` in the workspace; output past `limit_chars` stays there, in a file."""

    async def run_program(
        self, program: ProgramSpec, *, stdin: AsyncIterable[bytes] | None, on_output: OnProgramOutput
    ) -> ProgramResult:
        """Run a program with streams. Exceptions of `stdin` and `on_output` propagate."""


class Processes(Protocol):
    """Background processes: each lives until it ends, is removed, or its sandbox goes. See remote_processes.py."""

    def under(self, rules: FileRules | None, env: Mapping[str, str] = NO_VARIABLES) -> Processes: ...
    async def start(self, spec: ProcessSpec) -> Process: ...
    async def list(self) -> ProcessList: ...
    async def read(
        self, process_id: str, *, stderr: bool = False, offset: int, limit_bytes: int = 256 * 1024, wait_s: float = 0
    ) -> ProcessPage: ...
    async def write(
        self,
        process_id: str,
        data: bytes,
        *,
        end: bool = False,
        wait_s: float,
        offset: int | None = None,
        request_id: str = "",
    ) -> Process: ...
    async def resize(self, process_id: str, rows: int, columns: int) -> Process: ...
    async def signal(self, process_id: str, number: int, *, tree: bool = False) -> Process | None: ...
    async def wait(self, process_id: str, *, wait_s: float) -> Process: ...
    async def remove(self, process_id: str) -> Process: ...


class Network(Protocol):
    """Connections between the gateway and programs of a sandbox. Their sockets do not block; the caller closes them."""

    async def open(self) -> int:
        """Listen where tool code reaches the network, unless it does already; return the port on its loopback."""

    async def close(self) -> None:
        """Stop listening there; connections that are open stay so."""

    async def accept(self) -> socket.socket:
        """Wait for a connection of tool code and return it; NotFound when nothing listens, or no longer."""

    async def connect(self, port: int) -> socket.socket:
        """Return a connection to a port of the sandbox's loopback; NotFound when nothing listens there."""
