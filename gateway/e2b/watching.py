"""Watching a directory, by a small program in the sandbox: one judged call, however long and often it is asked.

A watcher is a background process, whose id is the watcher's. It keeps the events that were not asked for, so any
gateway can ask it for them. What it says is not trusted, as tool code can write to its output: a line has a limit, and
an answer comes in time.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.client import Process
from gateway.e2b import directory_watcher
from gateway.e2b.envd import filesystem_pb2 as pb
from gateway.e2b.envd_call import Context, EnvdCall, keepalive_of
from gateway.e2b.errors import NoCounterpart
from gateway.e2b.output_events import KeepAlive, Output, output_events
from gateway.e2b.paths import path_of
from gateway.errors import AirlockError, NotADirectory, NotFound, StartFailed, Unavailable

_SOURCE = Path(directory_watcher.__file__).read_text(encoding="utf-8")
_TYPES = {
    "create": pb.EVENT_TYPE_CREATE,
    "write": pb.EVENT_TYPE_WRITE,
    "remove": pb.EVENT_TYPE_REMOVE,
    "rename": pb.EVENT_TYPE_RENAME,
    "chmod": pb.EVENT_TYPE_CHMOD,
}
# One event, whose name has at most 4,096 bytes; all that were not asked for.
_LINE_LIMIT_BYTES, _ANSWER_LIMIT_BYTES = 64 * 1024, 4 * 1024 * 1024
_ANSWER_S = 60.0


class WatchRpc:
    """The methods of filesystem.Filesystem that watch."""

    async def watch_dir(
        self, call: EnvdCall, request: pb.WatchDirRequest, context: Context
    ) -> AsyncIterator[pb.WatchDirResponse]:
        process, at = await _started(call, request)
        try:
            await call.client.write_process(call.thread, process.id, b"-\n")
            yield pb.WatchDirResponse(start=pb.WatchDirResponse.StartEvent())
            async for line in _lines(call, process, at, keepalive_of(context)):
                if line is None:
                    yield pb.WatchDirResponse(keepalive=pb.WatchDirResponse.KeepAlive())
                else:
                    (event,) = _events(b"[%b]" % line)
                    yield pb.WatchDirResponse(filesystem=event)
        finally:
            await _removed(call, process.id)

    async def create_watcher(
        self, call: EnvdCall, request: pb.CreateWatcherRequest, _context: Context
    ) -> pb.CreateWatcherResponse:
        process, _ = await _started(call, request)
        return pb.CreateWatcherResponse(watcher_id=process.id)

    async def get_watcher_events(
        self, call: EnvdCall, request: pb.GetWatcherEventsRequest, _context: Context
    ) -> pb.GetWatcherEventsResponse:
        process = await _known(call, request.watcher_id)
        mark = secrets.token_hex(8).encode()
        await call.client.write_process(call.thread, process.id, mark + b"\n")
        said = await _line(call, process, process.stdout_size_bytes, _ANSWER_LIMIT_BYTES, after=mark)
        if said is None:
            raise Unavailable(f"watcher with id {request.watcher_id[:64]} does not answer")
        return pb.GetWatcherEventsResponse(events=_events(said))

    async def remove_watcher(
        self, call: EnvdCall, request: pb.RemoveWatcherRequest, _context: Context
    ) -> pb.RemoveWatcherResponse:
        process = await _known(call, request.watcher_id)
        await call.client.remove_process(call.thread, process.id)
        return pb.RemoveWatcherResponse()


async def _started(call: EnvdCall, request: pb.WatchDirRequest | pb.CreateWatcherRequest) -> tuple[Process, int]:
    """Start a watcher; return it and where its events begin in its output."""
    if request.include_entry or request.allow_network_mounts:
        raise NoCounterpart("include_entry, allow_network_mounts: events have the name and the type of what happened")
    path = path_of(request.path)
    found = await call.client.stat_file(call.thread, path.inside)
    if found.kind != "directory":
        raise NotADirectory(f"path {path.shown} is not a directory")
    # -I: files of the directory where it starts are no modules of it.
    argv = ["python3", "-I", "-c", _SOURCE, path.inside, "1" if request.recursive else "0"]
    try:
        process = await call.client.start_process(argv, thread=call.thread, stdin=True)
    except StartFailed as error:
        raise NoCounterpart("watching a directory needs python3 in the sandbox's image, which has none") from error
    said: bytes | None = None
    try:
        said = await _line(call, process, 0, _LINE_LIMIT_BYTES)
    finally:
        if said != b"ready":
            await _removed(call, process.id)
    if said == b"ready":
        return process, len(b"ready\n")
    why = "it does not answer" if said is None else said.decode(errors="replace").removeprefix("error").strip()[:200]
    raise AirlockError(f"error creating watcher: {why}")


async def _line(call: EnvdCall, process: Process, at: int, limit_bytes: int, *, after: bytes = b"") -> bytes | None:
    """Return what a watcher says from a place on, after a mark, to the end of the line; None if it does not."""
    said, seen = bytearray(), 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            async for piece in call.client.process_output(call.thread, process.id, offset=at, follow=True):
                said += piece.data
                if after and (found := said.find(after, seen)) >= 0:
                    said, after, seen = said[found + len(after) :], b"", 0
                if not after and (end := said.find(b"\n", seen)) >= 0:
                    return bytes(said[:end])
                if len(said) > limit_bytes:
                    break
                seen = max(len(said) - len(after), 0)
    return None


async def _lines(call: EnvdCall, process: Process, at: int, keepalive_s: float) -> AsyncIterator[bytes | None]:
    """Yield the lines of a watcher, None for a sign of life."""
    pending, skipped = b"", 0
    async for event in output_events(call, process, keepalive_s=keepalive_s, deadline_s=None):
        if isinstance(event, KeepAlive):
            yield None
        elif isinstance(event, Output) and event.stream == "stdout":
            data = event.data[max(at - skipped, 0) :]
            skipped += len(event.data)
            *lines, pending = (pending + data).split(b"\n")
            if max(map(len, (pending, *lines))) > _LINE_LIMIT_BYTES:
                raise _not_a_watcher()
            for line in lines:
                yield line


async def _known(call: EnvdCall, watcher_id: str) -> Process:
    for process in (await call.client.processes(call.thread, running=True)).processes:
        if process.id == watcher_id:
            return process
    raise NotFound(f"watcher with id {watcher_id[:64]} not found")


async def _removed(call: EnvdCall, process_id: str) -> None:
    with contextlib.suppress(AirlockError):  # it is gone, or ends with its sandbox
        await call.client.remove_process(call.thread, process_id)


def _events(said: bytes) -> list[pb.FilesystemEvent]:
    """Return the events of a list that a watcher wrote. Raises AirlockError."""
    try:
        return [_event(*one) for one in json.loads(said)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _not_a_watcher() from None


def _event(kind: str, name: str) -> pb.FilesystemEvent:
    return pb.FilesystemEvent(name=name.encode("utf-8", "replace").decode(), type=_TYPES[kind])


def _not_a_watcher() -> AirlockError:
    return AirlockError("the watcher in the sandbox wrote something that is not an event")
