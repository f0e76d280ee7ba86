"""`python -m sandbox.engines.local.file_worker_process FD`: the worker process that makes LocalFS's file calls.

The daemon runs searches and the like in forked children. A process with threads, such as gRPC's, must not fork; this
one has none. Its control socket, the descriptor FD, receives a connection for each call, with the root it works in. The
worker exits when the other end is closed.
"""

import asyncio
import contextlib
import os
import socket
import sys

from sandbox.daemon.frames import FrameSocket, InputStream
from sandbox.daemon.serving.calls import CONNECTION_ERRORS, Hangups, answer_file_call, reply_of
from sandbox.v1 import channel_pb2 as pb


async def serve(control: socket.socket) -> None:
    """Serve connections until the control socket closes."""
    loop = asyncio.get_running_loop()
    hangups = Hangups()
    ended = asyncio.Event()
    working: set[asyncio.Task[None]] = set()

    def accept() -> None:
        try:
            root, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            root, descriptors = b"", []
        if not root:
            loop.remove_reader(control)
            ended.set()
            return
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        task = loop.create_task(_serve_call(connection, os.fsdecode(root), hangups))
        working.add(task)
        task.add_done_callback(working.discard)

    loop.add_reader(control, accept)
    await ended.wait()
    for task in working:
        task.cancel()
    if working:
        await asyncio.wait(working)


async def _serve_call(connection: socket.socket, root: str, hangups: Hangups) -> None:
    """Answer one call; the caller cancels it by closing the connection."""
    with connection, contextlib.suppress(*CONNECTION_ERRORS, asyncio.CancelledError):
        hangups.watch(connection)
        try:
            frames = FrameSocket(connection)
            frame = await frames.read()
            if frame is not None:
                request, given = pb.Request.FromString(frame), InputStream(frames)
                reply = await reply_of(answer_file_call(request, frames, given, root))
                if reply is not None:
                    await frames.send(reply)
                if request.HasField("write") and not request.write.inline:
                    await given.discard()
        finally:
            hangups.forget(connection)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        given.setblocking(False)
        asyncio.run(serve(given))
