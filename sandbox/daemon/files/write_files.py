"""Writes files: the bytes are in the request or follow as input, and replace the file at their end."""

from __future__ import annotations

import asyncio
import errno

from sandbox.daemon.failures import Fault
from sandbox.daemon.files.entries import entry_of
from sandbox.daemon.files.replacement import Replacement
from sandbox.daemon.files.thread_work import work_in_thread
from sandbox.daemon.input_stream import InputStream
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.paths import Place
from sandbox.v1 import channel_pb2 as wire

# After so many bytes other tasks run; a fast input would otherwise block them.
_TURN_BYTES = 1024 * 1024


async def write(
    request: wire.WriteRequest,
    given: InputStream,
    *,
    workspace: str = "",
    one_name: bool = False,
    disk: DiskWatch | None = None,
) -> wire.Reply:
    """Replace the file with the bytes of the request or of the input that follows it, as far as `disk` admits them.

    Over the limit, bytes are admitted that take no more than replacing the old file frees.
    """
    with Place(request.path, make_parents=disk is None or await disk.admit_parents(request.path)) as place:
        if not place.names:
            raise Fault(wire.FAILURE_KIND_IS_A_DIRECTORY, "/ is a directory; a file was expected", errno.EISDIR)
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
                    if written_bytes >= _TURN_BYTES:
                        written_bytes = 0
                        await asyncio.sleep(0)
            state = await work_in_thread(replacement.commit) if replacement.slow else replacement.commit()
            return wire.Reply(entry=entry_of(place.path, state))
        finally:
            if replacement.slow:
                await work_in_thread(replacement.close)
            else:
                replacement.close()
