"""What the agent asks of a file system and of a shell. LocalFS and RemoteFS satisfy it without importing it.

Paths are absolute POSIX paths as str; bytes of a name that are not UTF-8 are surrogate-escaped. Failures are OSError
subclasses whose str() tells a person or a model what is wrong and how to mend it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

EntryType = Literal["file", "directory", "symlink", "other"]
OutputStream = Literal["stdout", "stderr"]


class Entry(Protocol):
    """A path: `name` is the bare name for ls and the absolute path elsewhere."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> EntryType: ...
    @property
    def size_bytes(self) -> int: ...


class EntriesPage(Protocol):
    """A page of entries; `total` is how many there are (at least, for glob)."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def total(self) -> int: ...
    @property
    def more(self) -> bool: ...
    @property
    def unsearched(self) -> int: ...


class LinesPage(Protocol):
    """A page of lines with their ends; `next_byte` is the offset just after it, `cut` says it ends inside a line."""

    @property
    def data(self) -> bytes: ...
    @property
    def lines(self) -> int: ...
    @property
    def more(self) -> bool: ...
    @property
    def binary(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def next_byte(self) -> int: ...
    @property
    def cut(self) -> bool: ...


class EditResult(Protocol):
    """How many matches were replaced (0: not found, nothing written) and how many are left."""

    @property
    def replaced(self) -> int: ...
    @property
    def left(self) -> int: ...


class GrepMatch(Protocol):
    """A matching line; `line` counts from 1."""

    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def text(self) -> str: ...


class GrepPage(Protocol):
    """A page of matches."""

    @property
    def matches(self) -> Sequence[GrepMatch]: ...
    @property
    def more(self) -> bool: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def binary_files(self) -> int: ...
    @property
    def hard_linked_files(self) -> int: ...
    @property
    def unsearched(self) -> int: ...


class FileSystem(Protocol):
    """Files, wherever they are.

    What is refused is an OSError. Where the files themselves are out of reach, an error may say in `outcome` what a
    tool call ends with (daemon_lost).
    """

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


class OutputPiece(Protocol):
    """Output in order of arrival."""

    @property
    def stream(self) -> OutputStream: ...
    @property
    def data(self) -> bytes: ...


class SpilledOutput(Protocol):
    """Where output that was too large is."""

    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def lines(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def incomplete(self) -> bool: ...


class ExecResult(Protocol):
    """How a program ended.

    `outcome` is one of exited, signalled, timed_out, cancelled, out_of_memory, pids_limit, output_limit (of a program
    whose output is streamed, never of a command line), disk_limit, daemon_lost, failed_to_start. `output` is everything
    kept, or the head when `evicted` is set; `tail` is then the end. `message` says more where the outcome alone does
    not (failed_to_start, pids_limit, disk_limit, daemon_lost, a process that the sandbox refused to a command that
    failed), else it is empty.
    """

    @property
    def outcome(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def output(self) -> Sequence[OutputPiece]: ...
    @property
    def tail(self) -> Sequence[OutputPiece]: ...
    @property
    def evicted(self) -> SpilledOutput | None: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def message(self) -> str: ...


OnOutput = Callable[[OutputStream, bytes], None]


class Shell(Protocol):
    """Runs a command line with /bin/sh -c in the workspace; cancelling the await kills everything it started."""

    async def execute(
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
    ) -> ExecResult: ...
