"""Validates requests about background processes; a Fault says which field is wrong and how to fix it."""

from __future__ import annotations

import signal
import string

from sandbox.daemon.failures import Fault, invalid_argument
from sandbox.daemon.paths import PATH_LIMIT_BYTES, components, join
from sandbox.daemon.programs.exec_request import SPILL_LIMIT_BYTES, ProgramFields
from sandbox.v1 import channel_pb2 as wire

ID_LIMIT = 64
SIDE_LIMIT = 4096
DEFAULT_SIZE = (24, 80)
DEFAULT_RING_BYTES = 64 * 1024
RING_LIMIT_BYTES = 1024 * 1024
PAGE_LIMIT_BYTES = 1024 * 1024
INPUT_LIMIT_BYTES = 1024 * 1024
WRITE_ID_LIMIT = 128
WAIT_LIMIT_MS = 60_000
SIGNAL_LIMIT = 64
_OFFSET_LIMIT = 2**63 - 1
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


def check_page(request: wire.ProcessReadRequest) -> None:
    """Raise a Fault for an invalid page."""
    if request.stream not in (wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR):
        raise invalid_argument(f"stream is {request.stream}; give stdout (1) or stderr (2)")
    if not 1 <= request.limit_bytes <= PAGE_LIMIT_BYTES:
        raise invalid_argument(f"limit_bytes is {request.limit_bytes}; give 1 to {PAGE_LIMIT_BYTES}")
    if request.offset > _OFFSET_LIMIT:
        raise invalid_argument(f"offset is {request.offset}; no output is longer than {_OFFSET_LIMIT} bytes")


def check_input(data: bytes) -> bytes:
    """Return the bytes to write to stdin."""
    if len(data) > INPUT_LIMIT_BYTES:
        raise Fault(
            wire.FAILURE_KIND_TOO_LARGE,
            f"0 of {len(data)} bytes were taken; {INPUT_LIMIT_BYTES} are allowed at once; write them in pieces",
        )
    return data


def check_write_id(request_id: str) -> str:
    """Return the id of a write, or ""."""
    if len(request_id) > WRITE_ID_LIMIT:
        raise invalid_argument(f"request_id has {len(request_id)} characters; {WRITE_ID_LIMIT} are the most")
    return request_id


def check_signal(request: wire.ProcessSignalRequest) -> int:
    """Return the number of a signal."""
    if not 1 <= request.signal <= SIGNAL_LIMIT:
        raise invalid_argument(f"signal is {request.signal}; give 1 to {SIGNAL_LIMIT}, such as 15 to ask it to end")
    if not request.id and (request.signal != signal.SIGKILL or not request.tree):
        raise invalid_argument("id is empty, which means all strays; they can only be killed: signal 9 with tree")
    return request.signal


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
