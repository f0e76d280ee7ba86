"""Converts and validates the daemon's replies about processes and health, as replies.py does for files."""

from __future__ import annotations

import re
from typing import NoReturn

from sandbox.client import replies
from sandbox.errors import DaemonLost, InputGap, InputNotTaken
from sandbox.filesystem import PROCESSES_DIRECTORY
from sandbox.health import DiskCount, Health
from sandbox.process import Process, ProcessList, ProcessOutput, ProcessPage
from sandbox.v1 import channel_pb2 as pb

PROCESSES_LIMIT = 64
PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
SIDE_LIMIT = 4096
_ARGV_BYTES = 4096
# PID_MAX_LIMIT of Linux.
PID_LIMIT = 2**22
# Far above the number of connections that a daemon serves at once.
_CALLS_LIMIT = 65_536


def process(reply: pb.Process, process_id: str) -> Process:
    """Return the requested process."""
    if reply.id != process_id:
        raise DaemonLost(f"the sandbox daemon answered with another process than {process_id!r}")
    ended = None if reply.running else replies.ending(reply.outcome, reply.exit_code, reply.signal)
    if ended is None and (reply.outcome or reply.exit_code or reply.signal):
        raise DaemonLost("the sandbox daemon says that a process runs and how it ended")
    if not reply.running <= reply.pid <= PID_LIMIT or reply.tree > PID_LIMIT:
        raise DaemonLost("the sandbox daemon sent a process id or a number of processes that no kernel has")
    if reply.started_ns < 0:
        raise DaemonLost("the sandbox daemon says that a process started before 1970")
    if reply.terminal and reply.HasField("stderr"):
        raise DaemonLost("the sandbox daemon gave a process a terminal and a stderr beside it")
    rows, columns = _size(reply)
    outcome, exit_code, signal = ended or (None, None, None)
    stdout, stderr = (f"{PROCESSES_DIRECTORY}/{process_id}.{stream}" for stream in ("stdout", "stderr"))
    return replies.converted(
        Process,
        reply,
        argv=_argv(reply),
        outcome=outcome,
        exit_code=exit_code,
        signal=signal,
        rows=rows,
        columns=columns,
        stdout=_output(reply.stdout, stdout),
        stderr=_output(reply.stderr, stderr) if reply.HasField("stderr") else None,
    )


def started_process(reply: pb.Process, asked: pb.ProcessStartRequest) -> Process:
    """Return a process that was just started as requested."""
    made = process(reply, asked.id)
    # The daemon truncates the arguments anywhere, so the reply has a prefix of them.
    if not b"\0".join(asked.argv).startswith(b"\0".join(made.argv)) or not made.argv:
        raise DaemonLost("the sandbox daemon says that it started another program than it was asked for")
    one_stream = asked.terminal or asked.merge_stderr
    if made.terminal != asked.terminal or (made.stderr is None) != one_stream:
        raise DaemonLost("the sandbox daemon gave a process other streams than it was asked for")
    return made


def process_list(reply: pb.ProcessListReply) -> ProcessList:
    """Return all background processes, each once."""
    if len(reply.processes) > PROCESSES_LIMIT:
        raise DaemonLost(f"the sandbox daemon lists more than {PROCESSES_LIMIT} processes")
    if reply.strays > PID_LIMIT:
        raise DaemonLost("the sandbox daemon sent a number of processes that no kernel has")
    ids = [item.id for item in reply.processes]
    if len(set(ids)) != len(ids) or not all(PROCESS_ID.fullmatch(process_id) for process_id in ids):
        raise DaemonLost("the sandbox daemon lists a process twice, or under a name that none can have")
    return ProcessList(tuple(process(item, item.id) for item in reply.processes), reply.strays)


def process_page(reply: pb.ProcessReadReply, *, offset: int, limit_bytes: int) -> ProcessPage:
    """Return a page of output that is no longer than requested and lies between `offset` and the stream's end."""
    if len(reply.data) > limit_bytes:
        raise DaemonLost("the sandbox daemon sent more output than was asked for")
    size_bytes = replies.count(reply.size_bytes)
    after = reply.offset + len(reply.data)
    # A page beyond the end is empty and keeps the requested offset.
    if reply.offset < offset or after > max(size_bytes, 0 if reply.data else offset):
        raise DaemonLost(f"the sandbox daemon sent output from {reply.offset}, where {offset} was asked for")
    if reply.end and after < size_bytes:
        raise DaemonLost("the sandbox daemon says that output ends before its end")
    return replies.converted(ProcessPage, reply)


def raise_write_failure(failure: pb.Failure, *, sent_bytes: int, offset: int | None) -> NoReturn:
    """Raise the error of a failed write: InputNotTaken, with the number of bytes written, or another one."""
    if failure.kind == pb.FAILURE_KIND_INPUT_GAP:
        if offset is None or failure.taken_bytes >= offset:
            raise DaemonLost("the sandbox daemon says that input has a gap where it has none")
        raise InputGap(replies.failure_message(failure), stdin_taken_bytes=failure.taken_bytes)
    if failure.kind not in (pb.FAILURE_KIND_TOO_LARGE, pb.FAILURE_KIND_CONFLICT):
        replies.raise_failure(failure)
    if failure.taken_bytes > sent_bytes:
        raise DaemonLost("the sandbox daemon says that a process took more input than it was sent")
    raised = InputNotTaken(
        replies.failure_message(failure),
        taken_bytes=failure.taken_bytes,
        closed=failure.kind == pb.FAILURE_KIND_CONFLICT,
    )
    raised.errno = replies.errno(failure.errno)
    raise raised


def health(reply: pb.HealthReply) -> Health:
    """Return a daemon's health; raises DaemonLost for impossible numbers."""
    if not 1 <= reply.calls <= _CALLS_LIMIT or reply.processes > PROCESSES_LIMIT or reply.pids > PID_LIMIT:
        raise DaemonLost("the sandbox daemon counts calls or processes that it cannot have")
    disks = {
        name: replies.converted(DiskCount, getattr(reply, name)) if reply.HasField(name) else None
        for name in ("workspace", "tmp")
    }
    return replies.converted(Health, reply, uptime_s=replies.count(reply.uptime_ms) / 1000, **disks)


def _argv(reply: pb.Process) -> tuple[bytes, ...]:
    argv = tuple(reply.argv)
    if sum(map(len, argv)) > _ARGV_BYTES or len(argv) > _ARGV_BYTES or any(b"\0" in argument for argument in argv):
        raise DaemonLost("the sandbox daemon sent arguments that are too long or that no program can have")
    return argv


def _size(reply: pb.Process) -> tuple[int, int]:
    if not reply.terminal:
        return 0, 0
    if not (1 <= reply.size.rows <= SIDE_LIMIT and 1 <= reply.size.columns <= SIDE_LIMIT):
        raise DaemonLost("the sandbox daemon sent a terminal of a size that none has")
    return reply.size.rows, reply.size.columns


def _output(reply: pb.ProcessOutput, path: str) -> ProcessOutput:
    if reply.ring_offset > reply.size_bytes or reply.path_bytes > reply.size_bytes:
        raise DaemonLost("the sandbox daemon holds more of a process' output than there is")
    if reply.path not in ("", path) or (reply.path_bytes and not reply.path):
        raise DaemonLost("the sandbox daemon keeps a process' output at a place that was not asked for")
    return replies.converted(ProcessOutput, reply)
