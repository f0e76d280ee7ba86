"""The searches glob and grep, each in a child process with a time limit."""

from __future__ import annotations

from sandbox.daemon.failures import Fault, invalid_argument
from sandbox.daemon.files import glob as glob_files
from sandbox.daemon.files import grep as grep_files
from sandbox.daemon.files.child_work import Emit, work_in_child
from sandbox.daemon.files.tree_files import check_limit
from sandbox.v1 import channel_pb2 as wire

GLOB_TIMEOUT_S = 30.0
GREP_TIMEOUT_LIMIT_MS = 120_000
_PATTERN_LIMIT_BYTES = 64 * 1024
# A glob for one name, of 255 bytes at most, with room for classes.
_INCLUDE_LIMIT_BYTES = 16 * 1024


async def glob(request: wire.GlobRequest, workspace: str) -> wire.Reply:
    """Return a page of paths."""
    limit = check_limit(request.limit)

    def work(emit: Emit) -> None:
        glob_files.check_pattern(request.pattern)
        glob_files.glob(request, limit, workspace, emit)

    reply = wire.EntriesReply()
    if not await work_in_child(work, reply, GLOB_TIMEOUT_S, request.path):
        message = f"{request.path}: the search took longer than {GLOB_TIMEOUT_S:.0f} s; search a smaller directory"
        raise Fault(wire.FAILURE_KIND_TOO_LARGE, message)
    return wire.Reply(entries=reply)


async def grep(request: wire.GrepRequest, workspace: str, *, one_name: bool = False) -> wire.Reply:
    """Return a page of matches, as far as they are found within the time limit.

    `one_name` skips and counts files with hard links.
    """
    limit = check_limit(request.limit)
    if not request.pattern or len(request.pattern.encode()) > _PATTERN_LIMIT_BYTES:
        raise invalid_argument(f"pattern must have 1 to {_PATTERN_LIMIT_BYTES} bytes")
    if len(request.include.encode()) > _INCLUDE_LIMIT_BYTES:
        raise invalid_argument(f"include must have {_INCLUDE_LIMIT_BYTES} bytes at most; give a pattern such as *.py")
    if not 1 <= request.timeout_ms <= GREP_TIMEOUT_LIMIT_MS:
        raise invalid_argument(f"timeout_ms is {request.timeout_ms}; give 1 to {GREP_TIMEOUT_LIMIT_MS}")

    def work(emit: Emit) -> None:
        grep_files.grep(request, limit, workspace, emit, one_name=one_name)

    reply = wire.GrepReply()
    if not await work_in_child(work, reply, request.timeout_ms / 1000, request.path):
        reply.timed_out = True
        reply.more = True
    return wire.Reply(grep=reply)
