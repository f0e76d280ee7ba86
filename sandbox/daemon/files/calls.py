"""The file calls: which function answers which request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.daemon.failures import invalid_argument
from sandbox.daemon.files import read_files, search, tree_files, write_files
from sandbox.daemon.frames import InputStream

if TYPE_CHECKING:
    from sandbox.daemon.frames import FrameSocket
    from sandbox.daemon.limits.disk_watch import DiskWatch
    from sandbox.v1 import channel_pb2 as wire

PROTOCOL_VERSION = 1


async def answer_file_call(
    request: wire.Request, frames: FrameSocket, given: InputStream, workspace: str, disk: DiskWatch | None = None
) -> wire.Reply | None:
    """Return the final frame of a call, None if it has been sent. `given` is the input that follows the request.

    Searches skip the private directory of `workspace`, and temporary files are created there. `disk` admits what is
    written. `one_name` refuses files with hard links, which searches of directories skip and count.
    """
    one_name = request.refuse_hard_links
    match request.WhichOneof("call"):
        case "read":
            await read_files.read(request.read, frames, one_name=one_name)
            return None
        case "read_lines":
            return await read_files.read_lines(request.read_lines, one_name=one_name)
        case "write":
            return await write_files.write(request.write, given, workspace=workspace, one_name=one_name, disk=disk)
        case "edit":
            return await write_files.edit(request.edit, workspace=workspace, one_name=one_name, disk=disk)
        case "stat":
            return tree_files.stat_path(request.stat)
        case "list":
            return await tree_files.list_directory(request.list)
        case "mkdir":
            if disk is not None:
                await disk.admit_directory(request.mkdir.path)
            return tree_files.make_directory(request.mkdir)
        case "remove":
            return await tree_files.remove(request.remove)
        case "rename":
            return await tree_files.rename(request.rename)
        case "glob":
            return await search.glob(request.glob, workspace)
        case "grep":
            return await search.grep(request.grep, workspace, one_name=one_name)
        case _:
            raise invalid_argument(
                f"the request names no call that protocol version {PROTOCOL_VERSION} knows; "
                "gateway and sandbox runtime must be of one release"
            )
