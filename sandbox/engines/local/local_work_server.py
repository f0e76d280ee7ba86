"""`python -m sandbox.engines.local.local_work_server FD`: the process in which LocalFS has done what may take long.

The rooms of the daemon do that in forked children. A process that has threads, gRPC's among them, must not fork; this
one has none. Its other end is local_work.py: over the control socket, whose number is the argument, comes a descriptor
for each piece of work, with the root that it is done in. It ends when nobody has the other end any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

from sandbox.daemon.failures import Fault, fault_of, invalid_argument
from sandbox.daemon.files import edit_files, search, tree_files
from sandbox.daemon.frames import BrokenFrame, FrameSocket
from sandbox.v1 import channel_pb2 as pb

# A path at its longest, and the digit before it that says whether a file may have one name only.
WORK_LIMIT_BYTES = 4096 + 1


async def serve(control: socket.socket) -> None:
    """Do what comes until the control socket closes."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    working: set[asyncio.Task[None]] = set()

    def take() -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(control, WORK_LIMIT_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            said, descriptors = b"", []
        if not said:
            loop.remove_reader(control)
            ended.set()
            return
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        task = loop.create_task(_do(connection, os.fsdecode(said[1:]), one_name=said[:1] == b"1"))
        working.add(task)
        task.add_done_callback(working.discard)

    loop.add_reader(control, take)
    await ended.wait()
    for task in working:
        task.cancel()
    if working:
        await asyncio.wait(working)


async def _do(connection: socket.socket, root: str, *, one_name: bool) -> None:
    """Do one piece of work; who closes its connection has it ended."""
    with connection:
        frames = FrameSocket(connection)
        with contextlib.suppress(BrokenFrame, ConnectionError, asyncio.CancelledError):
            frame = await frames.read()
            if frame is None:
                return
            task = asyncio.create_task(_reply(pb.Request.FromString(frame), root, one_name=one_name))
            gone = asyncio.create_task(frames.read())
            try:
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    await frames.send(task.result())
            finally:
                for one in (task, gone):
                    one.cancel()
                await asyncio.wait({task, gone})


async def _reply(request: pb.Request, root: str, *, one_name: bool) -> pb.Reply:
    try:
        match request.WhichOneof("call"):
            case "list":
                return await tree_files.list_directory(request.list)
            case "glob":
                return await search.glob(request.glob, root)
            case "grep":
                return await search.grep(request.grep, root, one_name=one_name)
            case "remove":
                return await tree_files.remove(request.remove)
            case "edit":
                return await edit_files.edit(request.edit, one_name=one_name)
            case call:
                raise invalid_argument(f"{call} is done elsewhere")
    except Fault as fault:
        return pb.Reply(failure=fault.failure())
    except OSError as error:
        return pb.Reply(failure=fault_of(error, "this machine").failure())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        given.setblocking(False)
        asyncio.run(serve(given))
