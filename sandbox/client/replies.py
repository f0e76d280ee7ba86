"""Converts and validates the daemon's replies: the only place that decides how far a sandbox is trusted.

Each function takes the request's bounds and the reply, returns a frozen value, and raises DaemonLost for a reply that
an honest daemon cannot send.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn, TypeVar

from google.protobuf.message import Message

from sandbox import errors
from sandbox.errors import DaemonLost
from sandbox.filesystem import EditResult, EntriesPage, Entry, EntryType, GrepMatch, GrepPage, LinesPage, OutputStream
from sandbox.v1 import channel_pb2 as pb

_MESSAGE_CHARS = 4096
_MATCH_TEXT_BYTES = 1000
_NAME_BYTES = 255
_PATH_BYTES = 4095
# No file has more bytes (8 EiB), and every number fits a signed 64-bit column.
_COUNT_LIMIT = 2**63 - 1
_EXIT_CODE_LIMIT = 255
_ERRNO_LIMIT = 4095
SIGNAL_LIMIT = 64
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_ENTRY_TYPES: dict[int, EntryType] = {
    pb.ENTRY_TYPE_FILE: "file",
    pb.ENTRY_TYPE_DIRECTORY: "directory",
    pb.ENTRY_TYPE_SYMLINK: "symlink",
    pb.ENTRY_TYPE_OTHER: "other",
}

_OUTCOMES = {number: name.removeprefix("OUTCOME_").lower() for name, number in pb.Outcome.items() if number}

_STREAMS: dict[int, OutputStream] = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}

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


_Value = TypeVar("_Value")


class Ending(NamedTuple):
    """How a program ended; see agent/filesystem.py for the outcomes."""

    outcome: str
    exit_code: int | None
    signal: int | None


def raise_failure(failure: pb.Failure) -> NoReturn:
    """Raise the error of a Failure, with its errno and its message, bounded and without control characters."""
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
    return _CONTROL.sub("?", text[:_MESSAGE_CHARS])


def listed_page(reply: pb.EntriesReply, *, limit: int) -> EntriesPage:
    """Return a page of a directory: bare names."""
    return _page(reply, limit, [_bare_name(entry.name) for entry in reply.entries[: limit + 1]])


def globbed_page(reply: pb.EntriesReply, *, limit: int, under: str) -> EntriesPage:
    """Return a page of matches: absolute paths below the searched directory."""
    return _page(reply, limit, [_path(entry.name, under) for entry in reply.entries[: limit + 1]])


def entry(reply: pb.Entry, name: str) -> Entry:
    """Return an entry under the gateway's own name for it."""
    kind = _ENTRY_TYPES.get(reply.type)
    if kind is None:
        raise DaemonLost(f"the sandbox daemon sent an entry of no known type ({reply.type})")
    return Entry(name, kind, count(reply.size_bytes), reply.mode & 0o7777, reply.modified_ns)


def lines_page(reply: pb.ReadLinesReply, *, limit: int, limit_bytes: int) -> LinesPage:
    """Return a page of lines, no longer than requested."""
    if len(reply.data) > limit_bytes or reply.lines > limit:
        raise DaemonLost("the sandbox daemon sent more lines than were asked for")
    return converted(LinesPage, reply)


def edit_result(reply: pb.EditReply) -> EditResult:
    """Return the result of an edit."""
    return converted(EditResult, reply)


def grep_page(reply: pb.GrepReply, *, limit: int, under: str) -> GrepPage:
    """Return a page of matching lines; bytes that are not UTF-8 are replaced."""
    if len(reply.matches) > limit:
        raise DaemonLost("the sandbox daemon sent more matches than were asked for")
    matches = tuple(
        GrepMatch(
            _path(match.path, under), count(match.line), match.text[:_MATCH_TEXT_BYTES].decode("utf-8", "replace")
        )
        for match in reply.matches
    )
    return converted(GrepPage, reply, matches=matches)


def output_stream(output: pb.Output) -> OutputStream:
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
    if not 0 <= exit_code <= _EXIT_CODE_LIMIT or signal > SIGNAL_LIMIT:
        raise DaemonLost("the sandbox daemon sent an exit code or signal that no program has")
    if (name == "exited" and signal) or (name == "signalled" and not signal):
        raise DaemonLost(
            f"the sandbox daemon sent the outcome {name} with signal {signal}, which contradict each other"
        )
    return Ending(name, exit_code if name == "exited" else None, signal if name == "signalled" else None)


def errno(number: int) -> int | None:
    """Return an errno, None for 0."""
    if number > _ERRNO_LIMIT:
        raise DaemonLost(f"the sandbox daemon sent an errno that no kernel has ({number})")
    return number or None


def count(number: int) -> int:
    """Return a plausible size or count."""
    if number > _COUNT_LIMIT:
        raise DaemonLost(f"the sandbox daemon sent an impossible count ({number})")
    return number


def converted(kind: type[_Value], reply: Message, **given: Any) -> _Value:
    """Return a dataclass with the fields of a reply that have the same names, and those that are given."""
    values = {field.name: getattr(reply, field.name) for field in fields(kind) if field.name not in given}  # type: ignore[arg-type]
    for value in values.values():
        if isinstance(value, int):
            count(value)
    return kind(**values, **given)


def _page(reply: pb.EntriesReply, limit: int, names: list[str]) -> EntriesPage:
    if len(reply.entries) > limit:
        raise DaemonLost("the sandbox daemon sent more entries than were asked for")
    entries = tuple(entry(item, name) for item, name in zip(reply.entries, names, strict=True))
    return EntriesPage(entries, max(count(reply.total), len(entries)), reply.more, count(reply.unsearched))


def _bare_name(name: bytes) -> str:
    if not name or len(name) > _NAME_BYTES or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise DaemonLost("the sandbox daemon sent a name that no file can have")
    return name.decode("utf-8", "surrogateescape")


def _path(path: bytes, under: str) -> str:
    text = path.decode("utf-8", "surrogateescape")
    inside = text == under or text.startswith(under.rstrip("/") + "/")
    plain = b"\0" not in path and b"//" not in path and not {b".", b".."} & set(path.split(b"/"))
    if not inside or not plain or len(path) > _PATH_BYTES:
        raise DaemonLost("the sandbox daemon sent a path that is not below the searched one")
    return text
