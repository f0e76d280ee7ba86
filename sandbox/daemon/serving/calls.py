"""One call on a connection: its answer or failure as a reply, its end when the caller hangs up, and all file calls."""

import asyncio
import select
import socket
import traceback
from collections.abc import Awaitable

from google.protobuf.message import DecodeError

from sandbox.daemon.failures import Fault, fault_of, internal, invalid_argument
from sandbox.daemon.files import read_files, search, tree_files, write_files
from sandbox.daemon.frames import BrokenFrame, FrameSocket, InputStream
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.v1 import channel_pb2 as wire

PROTOCOL_VERSION = 1

CONNECTION_ERRORS = (BrokenFrame, DecodeError, ConnectionError)
"""They end the connection, without a reply."""


async def reply_of(answer: Awaitable[wire.Reply | None]) -> wire.Reply | None:
    """Return the reply of a call, or its failure as a reply; raises CONNECTION_ERRORS."""
    try:
        return await answer
    except Fault as fault:
        return wire.Reply(failure=fault.failure())
    except CONNECTION_ERRORS:
        raise
    except OSError as error:
        return wire.Reply(failure=fault_of(error, "the daemon").failure())
    except Exception as error:
        traceback.print_exc()
        message = f"the daemon failed: {type(error).__name__}: {error}; its log has more"
        return wire.Reply(failure=internal(message).failure())


class Hangups:
    """Cancels the task of a connection as soon as its peer hangs up, even while the connection is not read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # A poll set becomes readable itself when an event occurs in it.
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._hung_up)

    def watch(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks[connection.fileno()] = task
            self._epoll.register(connection.fileno(), select.EPOLLRDHUP)

    def watch_whole(self, connection: socket.socket) -> None:
        """From now on cancel only when both directions are closed, which epoll reports unasked."""
        self._epoll.modify(connection.fileno(), 0)

    def forget(self, connection: socket.socket) -> None:
        """Stop watching; call before the connection is closed."""
        if self._tasks.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    def _hung_up(self) -> None:
        for fd, _ in self._epoll.poll(0):
            task = self._tasks.pop(fd, None)
            self._epoll.unregister(fd)
            if task is not None:
                task.cancel()


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
