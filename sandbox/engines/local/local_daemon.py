"""LocalDaemon: answers a channel as a sandbox's daemon does, from this process and without a sandbox.

It stands on the daemon's own rooms, so a command, a program with streams and a background process mean the same by
every word and have the same bounds. Files are not its business: LocalFS has them. Paths of calls are the sandbox's; a
real directory stands at /workspace, and that is translated here. Inside of a command nothing is translated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import cast

from google.protobuf.message import DecodeError

from sandbox.client.channel import Channel
from sandbox.client.connection import Connection
from sandbox.daemon.failures import Fault, fault_of, invalid_argument
from sandbox.daemon.frames import BrokenFrame, FrameSocket, Serializable
from sandbox.daemon.input_stream import InputStream
from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.limits.disk_reading import DiskReading
from sandbox.daemon.programs.exec import Executor
from sandbox.daemon.programs.exec_request import tool_environment
from sandbox.daemon.programs.processes import Processes
from sandbox.daemon.serving.health import Health
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.engines.local.local_spawner import LocalSpawner
from sandbox.errors import DaemonLost
from sandbox.filesystem import WORKSPACE
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

# The control group of this process is the gateway's: what it says is nothing that a sandbox may be told of.
_NO_CGROUP = os.devnull


class LocalDaemon:
    """Runs programs in `workspace`, their HOME, with `temporary` as TMPDIR; `token` marks what it starts."""

    def __init__(self, workspace: Path, temporary: Path, token: str) -> None:
        self._places = _Places(workspace)
        self._spawner = LocalSpawner(token)
        as_daemons = cast(Spawner, self._spawner)
        cgroup = Cgroup(_NO_CGROUP)
        # Of the gateway's own environment, which has its secrets, programs get nothing but the way to other programs.
        inherited = {b"PATH": os.environb.get(b"PATH", os.defpath.encode())}
        environment = {**tool_environment(inherited, str(workspace)), b"TMPDIR": os.fsencode(temporary)}
        self._executor = Executor(as_daemons, cgroup, str(workspace), environment)
        self._processes = _LocalProcesses(as_daemons, cgroup, str(workspace), environment)
        self._health = Health(cgroup)
        # What processes of this machine hold is not looked at: they are not of this sandbox alone.
        self._disk_reading = DiskReading((str(workspace), str(temporary)), asyncio.Lock(), held=False)
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False

    def connect(self) -> Connection:
        """Return a new connection to this daemon; DaemonLost when it is closed."""
        if self._closed:
            raise DaemonLost("the sandbox was removed")
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        task = asyncio.get_running_loop().create_task(self._serve(far))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return _LocalConnection(near, task)

    async def close(self) -> None:
        """End every call and every program, and wait for it. Closing again is no error."""
        self._closed = True
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._spawner.close()
        self._processes.forget_all()

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                frames = _Frames(connection, self._places)
                while (frame := await frames.read()) is not None:
                    await self._serve_call(pb.Request.FromString(frame), frames)
            except (BrokenFrame, DecodeError, ConnectionError):
                pass  # closing is the answer
            except asyncio.CancelledError:
                pass  # the caller hung up
            except Exception:
                log.exception("a connection to an in-memory sandbox failed")

    async def _serve_call(self, request: pb.Request, frames: FrameSocket) -> None:
        given = InputStream(frames)
        self._health.calls += 1
        try:
            reply = await self._answer(request, frames, given)
        except Fault as fault:
            reply = pb.Reply(failure=fault.failure())
        except ConnectionError:
            raise
        except OSError as error:
            reply = pb.Reply(failure=fault_of(error, "the in-memory engine").failure())
        finally:
            self._health.calls -= 1
        if reply is not None:
            await frames.send(reply)
        if request.exec.stdin:
            await given.discard()

    async def _answer(self, request: pb.Request, frames: FrameSocket, given: InputStream) -> pb.Reply | None:
        """Return the final frame, None when it has been sent."""
        call = request.WhichOneof("call") or "nothing"
        self._places.translate(request)
        if call == "exec":
            await self._executor.execute(request.exec, frames, given)
            return None
        if call == "health":
            disk = await self._disk_reading.read() if request.health.count_disk else ()
            return self._health.reply(self._processes.running(), *disk)
        if call.startswith("process_"):
            return await self._processes.answer(call, request)
        raise invalid_argument(f"an in-memory sandbox has no answer to {call}")


class LocalChannel(Channel):
    """Calls to a daemon in this process."""

    def __init__(self, daemon: LocalDaemon) -> None:
        super().__init__(Path())
        self._daemon = daemon

    async def _open(self) -> Connection:
        return self._daemon.connect()


class _LocalConnection(Connection):
    """A connection whose end ends the call on it at once: nobody here watches for a peer that hangs up."""

    def __init__(self, connected: socket.socket, serving: asyncio.Task[None]) -> None:
        super().__init__(connected)
        self._serving = serving

    def close(self) -> None:
        super().close()
        self._serving.cancel()


class _LocalProcesses(Processes):
    """Background processes that are counted by the marks of this machine's; the daemon counts by groups."""

    async def _living(self) -> dict[int, int]:
        return await cast(LocalSpawner, self._spawner).count()

    def forget_all(self) -> None:
        """Let go of every process and its streams."""
        for process in list(self._kept.values()):
            self._forget(process)


class _Places:
    """A real directory in the place of /workspace."""

    def __init__(self, workspace: Path) -> None:
        self._real = str(workspace)

    def translate(self, request: pb.Request) -> None:
        """Put the real directory into a request."""
        match request.WhichOneof("call"):
            case "exec":
                request.exec.cwd = self._inside(request.exec.cwd)
                if request.exec.output_limit.spill_path:
                    request.exec.output_limit.spill_path = self._inside(request.exec.output_limit.spill_path)
            case "process_start":
                request.process_start.cwd = self._inside(request.process_start.cwd)
                request.process_start.output_directory = self._inside(request.process_start.output_directory)

    def show(self, reply: pb.Reply) -> None:
        """Put /workspace into a reply, before it goes out."""
        match reply.WhichOneof("reply"):
            case "exec" if reply.exec.HasField("evicted"):
                reply.exec.evicted.path = self._shown(reply.exec.evicted.path)
            case "process":
                self._show_process(reply.process)
            case "process_list":
                for process in reply.process_list.processes:
                    self._show_process(process)
            case "failure":
                reply.failure.message = self._shown(reply.failure.message)

    def _show_process(self, process: pb.Process) -> None:
        process.stdout.path = self._shown(process.stdout.path)
        if process.HasField("stderr"):
            process.stderr.path = self._shown(process.stderr.path)

    def _inside(self, path: str) -> str:
        if path == WORKSPACE or path.startswith(f"{WORKSPACE}/"):
            return self._real + path.removeprefix(WORKSPACE)
        return path

    def _shown(self, text: str) -> str:
        return text.replace(self._real, WORKSPACE)


class _Frames(FrameSocket):
    """Frames whose replies name /workspace."""

    def __init__(self, connection: socket.socket, places: _Places) -> None:
        super().__init__(connection)
        self._places = places

    async def send(self, message: Serializable) -> None:
        if isinstance(message, pb.Reply):
            self._places.show(message)
        await super().send(message)
