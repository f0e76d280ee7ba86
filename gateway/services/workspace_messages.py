"""Entries of a sandbox's file system as messages, and the arguments of a file call that policy judges."""

from __future__ import annotations

import posixpath

from pydantic import JsonValue

from agent import errors as agent_errors
from agent.tools.paths import resolve
from gateway.errors import InvalidPath
from gateway.services.messages import numbers
from gateway.v1 import workspace_service_pb2 as pb
from sandbox.filesystem import Entry

_KINDS = numbers(pb.FileKind, "FILE_KIND_")


def entry_message(entry: Entry, *, below: str = "") -> pb.FileEntry:
    """Return an entry under its base name, or under its path relative to the directory `below`."""
    name = posixpath.relpath(entry.name, below) if below else posixpath.basename(entry.name) or "/"
    message = pb.FileEntry(
        # Readable: a protobuf string cannot have bytes that are not UTF-8.
        name=name.encode(errors="surrogateescape").decode(errors="backslashreplace"),
        kind=_KINDS[entry.type],
        size_bytes=entry.size_bytes,
        mode=entry.mode,
        etag=f"{entry.modified_ns:x}-{entry.size_bytes:x}",
    )
    message.modified_at.FromNanoseconds(entry.modified_ns)
    return message


def judged(path: str, **asked: JsonValue) -> dict[str, JsonValue]:
    """Return the arguments of a call on a path: the absolute path, and whatever else was requested.

    They are part of what an approval covers: approval to write a file does not allow removing it.
    """
    try:
        resolved = resolve(path)
    except agent_errors.InvalidPath as error:
        raise InvalidPath(str(error)) from error
    return {"path": resolved, **{name: value for name, value in asked.items() if value}}
