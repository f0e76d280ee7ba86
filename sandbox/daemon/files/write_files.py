"""Writes files: the bytes are in the request or follow as input, and replace the file at their end."""

import asyncio
import errno
import os
from contextlib import closing, nullcontext
from functools import partial

from sandbox.daemon.failures import Fault, fault_at, internal, invalid_argument, too_large
from sandbox.daemon.files.replacement import Replacement, new_temporary_name, remove_temporary
from sandbox.daemon.files.slow_work import Emit, work_in_child, work_in_thread
from sandbox.daemon.files.tree_files import entry_of
from sandbox.daemon.frames import InputStream
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.paths import Place
from sandbox.v1 import channel_pb2 as wire


async def write(
    request: wire.WriteRequest,
    given: InputStream,
    *,
    workspace: str = "",
    one_name: bool = False,
    disk: DiskWatch | None = None,
) -> wire.Reply:
    """Replace the file with the bytes of the request or of the input that follows it, as far as `disk` admits them."""
    with Place(request.path, make_parents=disk is None or await disk.admit_parents(request.path)) as place:
        if not place.names:
            raise Fault(wire.FAILURE_KIND_IS_A_DIRECTORY, "/ is a directory; a file was expected", errno.EISDIR)
        # Over the limit, bytes are admitted that take no more than replacing the old file frees.
        if disk is not None and not (request.inline and disk.gives_back(place.stat_or_none(), len(request.data))):
            await disk.admit(place.path, len(request.data))
        # No other task runs until the admitted bytes are written, so a count of the disk sees all of them.
        replacement = Replacement(place, workspace=workspace, one_name=one_name)
        try:
            if request.inline:
                replacement.write(request.data)
            else:
                written_bytes = 0
                while (piece := await given.read_piece()) is not None:
                    if disk is not None:
                        await disk.admit(place.path, len(piece), 0)
                    replacement.write(piece)
                    written_bytes += len(piece)
                    # After so many bytes other tasks run; a fast input would otherwise block them.
                    if written_bytes >= 1024 * 1024:
                        written_bytes = 0
                        await asyncio.sleep(0)
            state = await work_in_thread(replacement.commit, slow=replacement.slow)
            return wire.Reply(entry=entry_of(place.path, state))
        finally:
            await work_in_thread(replacement.close, slow=replacement.slow)


FILE_LIMIT_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 60.0


async def edit(
    request: wire.EditRequest, *, workspace: str = "", one_name: bool = False, disk: DiskWatch | None = None
) -> wire.Reply:
    """Replace the first match or all, and report how many are left."""
    if not request.old_text:
        raise invalid_argument("old_text is empty; give the exact text to replace, or write the whole file instead")
    with Place(request.path) as place:
        fd, state = place.open_regular(one_name=one_name)
        os.close(fd)
        matches = state.st_size // len(request.old_text) if request.replace_all else 1
        grown_bytes = max(len(request.new_text) - len(request.old_text), 0)
        most_bytes = min(state.st_size + matches * grown_bytes, FILE_LIMIT_BYTES)
        async with nullcontext() if disk is None else disk.writing(place.path, most_bytes):
            reply = wire.EditReply()
            # Larger files are edited in a child process: they would block the server and enlarge its memory.
            if state.st_size <= 1024 * 1024 and len(request.new_text) <= len(request.old_text) + 1024:
                _edit(request, reply.CopyFrom, workspace, None, one_name=one_name)
                return wire.Reply(edit=reply)
            temporary_name = new_temporary_name()
            work = partial(_edit, request, workspace=workspace, temporary_name=temporary_name, one_name=one_name)
            try:
                if not await work_in_child(work, reply, _TIMEOUT_S, place.path):
                    raise internal(f"{place.path}: the edit took longer than {_TIMEOUT_S:.0f} s")
            finally:
                # The child may have been killed.
                remove_temporary(place, workspace, temporary_name)
            return wire.Reply(edit=reply)


def _edit(request: wire.EditRequest, emit: Emit, workspace: str, temporary_name: str | None, *, one_name: bool) -> None:
    with Place(request.path) as place:
        text = _read_whole(place, one_name=one_name)
        matches = text.count(request.old_text)
        replaced = matches if request.replace_all else min(matches, 1)
        size = len(text) + replaced * (len(request.new_text) - len(request.old_text))
        if size > FILE_LIMIT_BYTES:
            raise _too_large(place.path, size, "would become")
        if replaced:
            made = Replacement(place, workspace=workspace, temporary_name=temporary_name, one_name=one_name)
            with closing(made) as replacement:
                replacement.write(text.replace(request.old_text, request.new_text, replaced))
                replacement.commit()
    emit(wire.EditReply(replaced=replaced, left=matches - replaced))


def _read_whole(place: Place, *, one_name: bool) -> bytes:
    fd, state = place.open_regular(one_name=one_name)
    with open(fd, "rb", buffering=0) as file:
        if state.st_size > FILE_LIMIT_BYTES:
            raise _too_large(place.path, state.st_size, "is")
        with fault_at(place.path):
            data = file.read(state.st_size) or b""
            while more := file.read(256 * 1024):
                data += more
                if len(data) > FILE_LIMIT_BYTES:
                    raise _too_large(place.path, len(data), "is")
    return data


def _too_large(path: str, size_bytes: int, verb: str) -> Fault:
    return too_large(
        f"{path} {verb} {size_bytes} bytes; edits go up to {FILE_LIMIT_BYTES}; use a command such as sed instead"
    )
