"""Validates requests about background processes; a Fault says which field is wrong and how to fix it."""

from __future__ import annotations

import string

from sandbox.daemon.failures import invalid_argument
from sandbox.daemon.paths import PATH_LIMIT_BYTES, components, join
from sandbox.daemon.programs.exec_request import SPILL_LIMIT_BYTES, ProgramFields
from sandbox.v1 import channel_pb2 as wire

ID_LIMIT = 64
SIDE_LIMIT = 4096
DEFAULT_SIZE = (24, 80)
DEFAULT_RING_BYTES = 64 * 1024
RING_LIMIT_BYTES = 1024 * 1024
WAIT_LIMIT_MS = 60_000
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-")
_TERMINAL_KIND = b"xterm-256color"


class StartRequest(ProgramFields):
    """What to start, from a request. `size` is (rows, columns) of the terminal, None without one."""

    def __init__(self, request: wire.ProcessStartRequest, workspace: str, environment: dict[bytes, bytes]) -> None:
        self.id = check_id(request.id)
        self.size: tuple[int, int] | None = None
        if request.terminal:
            self.size = check_size(request.size) if request.HasField("size") else DEFAULT_SIZE
            environment = {**environment, b"TERM": _TERMINAL_KIND}
        super().__init__(request, workspace, environment)
        self.merge_stderr = request.merge_stderr
        self.ring_bytes = request.ring_bytes or DEFAULT_RING_BYTES
        if self.ring_bytes > RING_LIMIT_BYTES:
            raise invalid_argument(f"ring_bytes is {self.ring_bytes}; {RING_LIMIT_BYTES} (1 MiB) is the most")
        self.directory = _output_directory(request, self.id)
        self.file_limit_bytes = request.file_limit_bytes


def check_id(process_id: str) -> str:
    """Return the id of a process."""
    if not 1 <= len(process_id) <= ID_LIMIT or not _ID_CHARACTERS.issuperset(process_id):
        raise invalid_argument(f"id {process_id[:100]!r}: give 1 to {ID_LIMIT} of A-Z a-z 0-9 _ -")
    return process_id


def check_size(size: wire.WindowSize) -> tuple[int, int]:
    """Return (rows, columns) of a terminal."""
    if not (1 <= size.rows <= SIDE_LIMIT and 1 <= size.columns <= SIDE_LIMIT):
        raise invalid_argument(
            f"size is {size.rows} rows of {size.columns} columns; a terminal has 1 to {SIDE_LIMIT} of each"
        )
    return size.rows, size.columns


def check_wait(wait_ms: int) -> float:
    """Return how long to wait, in seconds."""
    if wait_ms > WAIT_LIMIT_MS:
        raise invalid_argument(f"wait_ms is {wait_ms}; {WAIT_LIMIT_MS} is the most; ask again to wait longer")
    return wait_ms / 1000


def _output_directory(request: wire.ProcessStartRequest, process_id: str) -> str:
    if request.file_limit_bytes > SPILL_LIMIT_BYTES:
        raise invalid_argument(f"file_limit_bytes is {request.file_limit_bytes}; {SPILL_LIMIT_BYTES} is the most")
    if not request.output_directory:
        return ""
    if not request.file_limit_bytes:
        raise invalid_argument("file_limit_bytes is 0; say how many bytes a file in output_directory may take")
    directory = join(components(request.output_directory, "output_directory"))
    if len(directory.encode()) + len(f"/{process_id}.stdout") > PATH_LIMIT_BYTES:
        raise invalid_argument(
            f"output_directory leaves no room for a file name; {PATH_LIMIT_BYTES} bytes are the most"
        )
    return directory.rstrip("/")
