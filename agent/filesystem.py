"""The protocols of a file system and a shell, and what a Python interpreter gives back.

Failures are OSError: str() says what is wrong and how to fix it.

Paths are absolute POSIX paths as str; bytes that are not UTF-8 are surrogate-escaped.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from agent.tool_call import CallContext

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
    """The number of replaced matches (0: not found, nothing written) and of remaining ones."""

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
    """Files. An error that means they are out of reach may set `outcome`, with which the tool call then ends."""

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
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200
    ) -> GrepPage: ...


class OutputPiece(Protocol):
    """Output in order of arrival."""

    @property
    def stream(self) -> OutputStream: ...
    @property
    def data(self) -> bytes: ...


class SpilledOutput(Protocol):
    """The file with output that was too large."""

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
    whose output is streamed, never of a command line), disk_limit, daemon_lost, failed_to_start. `output` is the whole
    output, or its head if `evicted` is set; `tail` is then its end. `message` explains the outcomes failed_to_start,
    pids_limit, disk_limit and daemon_lost, and a process that the sandbox refused to a failing command.
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


class Redacted(bytes):
    """Bytes without secrets: redacted together with what is around them, so they are not scanned again alone."""

    __slots__ = ()


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return the bytes of pieces that follow each other in one output; Redacted if all of them are."""
    pieces = [piece for piece in pieces if piece]
    data = b"".join(pieces)
    return Redacted(data) if pieces and all(isinstance(piece, Redacted) for piece in pieces) else data


class Shell(Protocol):
    """Runs a command line with /bin/sh -c in the workspace; cancelling the await kills everything it started.

    `context` is what the hooks of the call share: a hook may say there how the sandbox runs the line.
    """

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
        context: CallContext | None = None,
    ) -> ExecResult: ...


class ShownObject(Protocol):
    """An object that code showed: texts by media type, an image or b""; `is_result`: the last expression's value."""

    @property
    def texts(self) -> Mapping[str, str]: ...
    @property
    def image(self) -> bytes: ...
    @property
    def is_result(self) -> bool: ...


class CellError(Protocol):
    """The exception that ended code."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def traceback(self) -> str: ...


class CellResult(Protocol):
    """How code ended: completed, failed (an exception), timed_out, or, if the interpreter ended, as in ExecResult.

    `output` is the whole output or, if `left_out_bytes` is not 0, its head; `tail` is then its end. `count` numbers the
    cells of an interpreter. `notes` are for the model.
    """

    @property
    def outcome(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def output(self) -> Sequence[OutputPiece]: ...
    @property
    def tail(self) -> Sequence[OutputPiece]: ...
    @property
    def left_out_bytes(self) -> int: ...
    @property
    def objects(self) -> Sequence[ShownObject]: ...
    @property
    def left_out_objects(self) -> int: ...
    @property
    def error(self) -> CellError | None: ...
    @property
    def count(self) -> int | None: ...
    @property
    def notes(self) -> Sequence[str]: ...
