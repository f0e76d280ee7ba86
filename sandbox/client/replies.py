"""Converts and validates the daemon's replies: the only place that decides how far a sandbox is trusted.

Each function takes the request's bounds and the reply, returns a frozen value, and raises DaemonLost for a reply that
an honest daemon cannot send.
"""

import re
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from google.protobuf.message import Message

from sandbox import errors, protocols
from sandbox.errors import DaemonLost, InputGap, InputNotTaken
from sandbox.usage import DiskCount, Health
from sandbox.v1 import channel_pb2 as pb

SIGNAL_LIMIT = 64
PROCESSES_LIMIT = 64
PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
SIDE_LIMIT = 4096
_ARGV_BYTES = 4096
_ATTACHED_LIMIT = 64
# PID_MAX_LIMIT of Linux.
PID_LIMIT = 2**22
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_ENTRY_TYPES: dict[int, protocols.EntryType] = {
    pb.ENTRY_TYPE_FILE: "file",
    pb.ENTRY_TYPE_DIRECTORY: "directory",
    pb.ENTRY_TYPE_SYMLINK: "symlink",
    pb.ENTRY_TYPE_OTHER: "other",
}

_OUTCOMES = {number: name.removeprefix("OUTCOME_").lower() for name, number in pb.Outcome.items() if number}

_STREAMS: dict[int, protocols.OutputStream] = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}

_FAILURES: dict[int, type[errors.SandboxError]] = {
    pb.FAILURE_KIND_NOT_FOUND: errors.NotFound,
    pb.FAILURE_KIND_PERMISSION_DENIED: errors.PermissionDenied,
    pb.FAILURE_KIND_IS_A_DIRECTORY: errors.IsADirectory,
    pb.FAILURE_KIND_NOT_A_DIRECTORY: errors.NotADirectory,
    pb.FAILURE_KIND_INVALID_PATH: errors.InvalidPath,
    pb.FAILURE_KIND_NO_SPACE: errors.NoSpace,
    pb.FAILURE_KIND_TOO_LARGE: errors.TooLarge,
    pb.FAILURE_KIND_CONFLICT: errors.Conflict,
    pb.FAILURE_KIND_INVALID_ARGUMENT: errors.InvalidArgument,
    pb.FAILURE_KIND_INTERNAL: errors.FileError,
    pb.FAILURE_KIND_EXHAUSTED: errors.Exhausted,
}


_REFUSALS: dict[int, Literal["busy", "attached"] | None] = {
    pb.REFUSAL_UNSPECIFIED: None,
    pb.REFUSAL_BUSY: "busy",
    pb.REFUSAL_ATTACHED: "attached",
}

_Value = TypeVar("_Value")


class Ending(NamedTuple):
    """How a program ended; see agent/filesystem.py for the outcomes."""

    outcome: str
    exit_code: int | None
    signal: int | None


def raise_failure(failure: pb.Failure) -> NoReturn:
    """Raise the error of a Failure, with its errno and its message, bounded and without control characters."""
    if failure.kind == pb.FAILURE_KIND_RETIRED:
        raise errors.SandboxRetired("another gateway removed the sandbox")
    error = _FAILURES.get(failure.kind)
    if error is None:
        raise DaemonLost(f"the sandbox daemon failed a call for no known reason ({failure.kind})")
    if failure.taken_bytes:
        raise DaemonLost("the sandbox daemon says that it took input, in a call that has none to take in part")
    raised = error(failure_message(failure))
    raised.errno = errno(failure.errno)
    raise raised


def failure_message(failure: pb.Failure) -> str:
    """Return the message of a Failure, for people and models; never empty."""
    return plain_text(failure.message) or "the sandbox gave no reason"


def plain_text(text: str) -> str:
    """Return text for people and models: bounded, without control characters other than newline and tab."""
    return _CONTROL.sub("?", text[:4096])


def entries_page(reply: pb.EntriesReply, *, limit: int, under: str | None = None) -> protocols.EntriesPage:
    """Return a page of a directory, by bare names; or of matches, by absolute paths below the directory `under`."""
    if len(reply.entries) > limit:
        raise DaemonLost("the sandbox daemon sent more entries than were asked for")
    names = (_bare_name(item.name) if under is None else _path(item.name, under) for item in reply.entries)
    entries = tuple(entry(item, name) for item, name in zip(reply.entries, names, strict=True))
    return protocols.EntriesPage(entries, max(count(reply.total), len(entries)), reply.more, count(reply.unsearched))


def entry(reply: pb.Entry, name: str) -> protocols.Entry:
    """Return an entry under the gateway's own name for it."""
    kind = _ENTRY_TYPES.get(reply.type)
    if kind is None:
        raise DaemonLost(f"the sandbox daemon sent an entry of no known type ({reply.type})")
    return protocols.Entry(name, kind, count(reply.size_bytes), reply.mode & 0o7777, reply.modified_ns)


def lines_page(reply: pb.ReadLinesReply, *, limit: int, limit_bytes: int) -> protocols.LinesPage:
    """Return a page of lines, no longer than requested."""
    if len(reply.data) > limit_bytes or reply.lines > limit:
        raise DaemonLost("the sandbox daemon sent more lines than were asked for")
    return converted(protocols.LinesPage, reply)


def grep_page(reply: pb.GrepReply, *, limit: int, under: str) -> protocols.GrepPage:
    """Return a page of matching lines; bytes that are not UTF-8 are replaced."""
    if len(reply.matches) > limit:
        raise DaemonLost("the sandbox daemon sent more matches than were asked for")
    matches = tuple(
        protocols.GrepMatch(_path(match.path, under), count(match.line), match.text[:1000].decode("utf-8", "replace"))
        for match in reply.matches
    )
    return converted(protocols.GrepPage, reply, matches=matches)


def output_stream(output: pb.Output) -> protocols.OutputStream:
    """Return the stream of a piece of output, which is not empty."""
    stream = _STREAMS.get(output.stream)
    if stream is None or not output.data:
        raise DaemonLost("the sandbox daemon sent output of no stream or without bytes")
    return stream


def ending(outcome: int, exit_code: int, signal: int) -> Ending:
    """Return how a program ended; only exited has an exit code, and only signalled a signal."""
    name = _OUTCOMES.get(outcome)
    if name is None:
        raise DaemonLost(f"the sandbox daemon ended a program with no known outcome ({outcome})")
    if not 0 <= exit_code <= 255 or signal > SIGNAL_LIMIT:
        raise DaemonLost("the sandbox daemon sent an exit code or signal that no program has")
    if (name == "exited" and signal) or (name == "signalled" and not signal):
        raise DaemonLost(
            f"the sandbox daemon sent the outcome {name} with signal {signal}, which contradict each other"
        )
    return Ending(name, exit_code if name == "exited" else None, signal if name == "signalled" else None)


def errno(number: int) -> int | None:
    """Return an errno, None for 0."""
    if number > 4095:
        raise DaemonLost(f"the sandbox daemon sent an errno that no kernel has ({number})")
    return number or None


def count(number: int) -> int:
    """Return a plausible size or count."""
    # No file has more bytes (8 EiB), and every number fits a signed 64-bit column.
    if number > 2**63 - 1:
        raise DaemonLost(f"the sandbox daemon sent an impossible count ({number})")
    return number


def converted(kind: type[_Value], reply: Message, **given: Any) -> _Value:
    """Return a dataclass with the fields of a reply that have the same names, and those that are given."""
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in given:
            value = given[name] = getattr(reply, name)
            if isinstance(value, int):
                count(value)
    return kind(**given)


def _bare_name(name: bytes) -> str:
    if not name or len(name) > 255 or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise DaemonLost("the sandbox daemon sent a name that no file can have")
    return name.decode("utf-8", "surrogateescape")


def _path(path: bytes, under: str) -> str:
    text = path.decode("utf-8", "surrogateescape")
    inside = text == under or text.startswith(under.rstrip("/") + "/")
    plain = b"\0" not in path and b"//" not in path and not {b".", b".."} & set(path.split(b"/"))
    if not inside or not plain or len(path) > 4095:
        raise DaemonLost("the sandbox daemon sent a path that is not below the searched one")
    return text


def process(reply: pb.Process, process_id: str) -> protocols.Process:
    """Return the requested process."""
    if reply.id != process_id:
        raise DaemonLost(f"the sandbox daemon answered with another process than {process_id!r}")
    ended = None if reply.running else ending(reply.outcome, reply.exit_code, reply.signal)
    if ended is None and (reply.outcome or reply.exit_code or reply.signal):
        raise DaemonLost("the sandbox daemon says that a process runs and how it ended")
    if not reply.running <= reply.pid <= PID_LIMIT or reply.tree > PID_LIMIT:
        raise DaemonLost("the sandbox daemon sent a process id or a number of processes that no kernel has")
    if reply.started_ns < 0:
        raise DaemonLost("the sandbox daemon says that a process started before 1970")
    if reply.terminal and reply.HasField("stderr"):
        raise DaemonLost("the sandbox daemon gave a process a terminal and a stderr beside it")
    argv = tuple(reply.argv)
    if sum(map(len, argv)) > _ARGV_BYTES or len(argv) > _ARGV_BYTES or any(b"\0" in argument for argument in argv):
        raise DaemonLost("the sandbox daemon sent arguments that are too long or that no program can have")
    rows, columns = _size(reply)
    outcome, exit_code, signal = ended or (None, None, None)
    stdout, stderr = (f"{protocols.PROCESSES_DIRECTORY}/{process_id}.{stream}" for stream in ("stdout", "stderr"))
    return converted(
        protocols.Process,
        reply,
        argv=argv,
        outcome=outcome,
        exit_code=exit_code,
        signal=signal,
        rows=rows,
        columns=columns,
        stdout=_output(reply.stdout, stdout),
        stderr=_output(reply.stderr, stderr) if reply.HasField("stderr") else None,
    )


def started_process(reply: pb.Process, asked: pb.ProcessStartRequest) -> protocols.Process:
    """Return a process that was just started as requested."""
    made = process(reply, asked.id)
    # The daemon truncates the arguments anywhere, so the reply has a prefix of them.
    if not b"\0".join(asked.argv).startswith(b"\0".join(made.argv)) or not made.argv:
        raise DaemonLost("the sandbox daemon says that it started another program than it was asked for")
    one_stream = asked.terminal or asked.merge_stderr
    if made.terminal != asked.terminal or (made.stderr is None) != one_stream:
        raise DaemonLost("the sandbox daemon gave a process other streams than it was asked for")
    return made


def process_list(reply: pb.ProcessListReply) -> protocols.ProcessList:
    """Return all background processes, each once."""
    if len(reply.processes) > PROCESSES_LIMIT:
        raise DaemonLost(f"the sandbox daemon lists more than {PROCESSES_LIMIT} processes")
    if reply.strays > PID_LIMIT:
        raise DaemonLost("the sandbox daemon sent a number of processes that no kernel has")
    ids = [item.id for item in reply.processes]
    if len(set(ids)) != len(ids) or not all(PROCESS_ID.fullmatch(process_id) for process_id in ids):
        raise DaemonLost("the sandbox daemon lists a process twice, or under a name that none can have")
    return protocols.ProcessList(tuple(process(item, item.id) for item in reply.processes), reply.strays)


def process_page(reply: pb.ProcessReadReply, *, offset: int, limit_bytes: int) -> protocols.ProcessPage:
    """Return a page of output that is no longer than requested and lies between `offset` and the stream's end."""
    if len(reply.data) > limit_bytes:
        raise DaemonLost("the sandbox daemon sent more output than was asked for")
    size_bytes = count(reply.size_bytes)
    after = reply.offset + len(reply.data)
    # A page beyond the end is empty and keeps the requested offset.
    if reply.offset < offset or after > max(size_bytes, 0 if reply.data else offset):
        raise DaemonLost(f"the sandbox daemon sent output from {reply.offset}, where {offset} was asked for")
    if reply.end and after < size_bytes:
        raise DaemonLost("the sandbox daemon says that output ends before its end")
    return converted(protocols.ProcessPage, reply)


def raise_write_failure(failure: pb.Failure, *, sent_bytes: int, offset: int | None) -> NoReturn:
    """Raise the error of a failed write: InputNotTaken, with the number of bytes written, or another one."""
    if failure.kind == pb.FAILURE_KIND_INPUT_GAP:
        if offset is None or failure.taken_bytes >= offset:
            raise DaemonLost("the sandbox daemon says that input has a gap where it has none")
        raise InputGap(failure_message(failure), stdin_taken_bytes=failure.taken_bytes)
    if failure.kind not in (pb.FAILURE_KIND_TOO_LARGE, pb.FAILURE_KIND_CONFLICT):
        raise_failure(failure)
    if failure.taken_bytes > sent_bytes:
        raise DaemonLost("the sandbox daemon says that a process took more input than it was sent")
    raised = InputNotTaken(
        failure_message(failure), taken_bytes=failure.taken_bytes, closed=failure.kind == pb.FAILURE_KIND_CONFLICT
    )
    raised.errno = errno(failure.errno)
    raise raised


def health(reply: pb.HealthReply) -> Health:
    """Return a daemon's health; raises DaemonLost for impossible numbers."""
    # Far above the number of connections that a daemon serves at once.
    if not 1 <= reply.calls <= 65_536 or reply.processes > PROCESSES_LIMIT or reply.pids > PID_LIMIT:
        raise DaemonLost("the sandbox daemon counts calls or processes that it cannot have")
    disks = {
        name: converted(DiskCount, getattr(reply, name)) if reply.HasField(name) else None
        for name in ("workspace", "tmp")
    }
    return converted(Health, reply, uptime_s=count(reply.uptime_ms) / 1000, **disks)


def presence(reply: pb.Presence) -> tuple[int, bool, bool]:
    """Return how many others are attached, whether they have calls under way, and whether the sandbox is retired."""
    if reply.others > _ATTACHED_LIMIT:
        raise DaemonLost("the sandbox daemon counts more gateways than it lets attach")
    return reply.others, reply.others_in_use, reply.retired


def refused(reply: pb.RetireReply) -> Literal["busy", "attached"] | None:
    """Return why a sandbox was not retired, None when it was."""
    if reply.refused not in _REFUSALS:
        raise DaemonLost(f"the sandbox daemon refuses to be retired for no known reason ({reply.refused})")
    return _REFUSALS[reply.refused]


def _size(reply: pb.Process) -> tuple[int, int]:
    if not reply.terminal:
        return 0, 0
    if not (1 <= reply.size.rows <= SIDE_LIMIT and 1 <= reply.size.columns <= SIDE_LIMIT):
        raise DaemonLost("the sandbox daemon sent a terminal of a size that none has")
    return reply.size.rows, reply.size.columns


def _output(reply: pb.ProcessOutput, path: str) -> protocols.ProcessOutput:
    if reply.ring_offset > reply.size_bytes or reply.path_bytes > reply.size_bytes:
        raise DaemonLost("the sandbox daemon holds more of a process' output than there is")
    if reply.path not in ("", path) or (reply.path_bytes and not reply.path):
        raise DaemonLost("the sandbox daemon keeps a process' output at a place that was not asked for")
    return converted(protocols.ProcessOutput, reply)
