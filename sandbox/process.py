"""What is known of programs in a sandbox: frozen values, every figure the sandbox's word within bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sandbox.filesystem import OutputStream

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
    `terminal`. At `timeout_s`, 7 days at most, everything it started is killed; None sets no limit.
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
