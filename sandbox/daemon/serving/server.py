"""The server: accepts connections, reads requests and dispatches them.

It runs without privileges on one asyncio loop. A connection carries one call at a time; when the caller hangs up, the
call is cancelled and what it started is killed. Background processes belong to no call and keep running.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import sys
import time
import traceback
from typing import TYPE_CHECKING

from sandbox.daemon.build import BUILD
from sandbox.daemon.failures import Fault
from sandbox.daemon.files.write_files import remove_unfinished
from sandbox.daemon.frames import FrameSocket, InputStream
from sandbox.daemon.limits.disk_use import DiskReading, DiskUse, mounted_use
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.limits.kernel import Cgroup, KernelUse
from sandbox.daemon.paths import let_owner_in, real
from sandbox.daemon.programs.exec import Executor
from sandbox.daemon.programs.exec_request import tool_environment
from sandbox.daemon.serving.calls import CONNECTION_ERRORS, PROTOCOL_VERSION, Hangups, answer_file_call, reply_of
from sandbox.daemon.serving.posture import read_posture
from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

if TYPE_CHECKING:
    from sandbox.daemon.programs.processes import Processes
    from sandbox.daemon.serving.attachments import Attachments
    from sandbox.daemon.serving.proxy_port import ProxyPort


class Health:
    """Records when the server began to listen, and counts calls in flight."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.calls = 0
        self._cgroup = cgroup
        self._listening_since_ns = time.monotonic_ns()

    def reply(self, processes: int, workspace: DiskUse | None = None, tmp: DiskUse | None = None) -> wire.Reply:
        return wire.Reply(
            health=wire.HealthReply(
                uptime_ms=(time.monotonic_ns() - self._listening_since_ns) // 1_000_000,
                calls=self.calls,
                processes=processes,
                pids=self._cgroup.pids(),
                memory_bytes=self._cgroup.memory_bytes(),
                memory_kills=self._cgroup.memory_kills(),
                pids_refused=self._cgroup.pids_refused(),
                workspace=_disk_count(workspace),
                tmp=_disk_count(tmp),
            )
        )


def _disk_count(use: DiskUse | None) -> wire.DiskCount | None:
    if use is None:
        return None
    return wire.DiskCount(size_bytes=int(use.size_bytes), files=use.files, partial=use.hidden)


# Limits of connections, and of concurrent file and program calls, beyond which new ones wait. Other calls are cheap and
# never wait, so the daemon's health and processes can always be inspected.
CONNECTIONS_LIMIT = 512
CALLS_LIMIT = 256
_TUNNELS = ("proxy_accept", "port_connect")
# A retired sandbox answers these, and no use of it is one of them.
_LOOKS = ("hello", "health", "process_list")
# A gateway always waits for the next connection, and keeps its place.
_WAITS = ("proxy_accept", "attach")
_TMP = "/tmp"  # noqa: S108
_PEER = struct.Struct("3i")


def serve(listener: socket.socket, control: socket.socket, settings: Settings) -> None:
    """Serve until init is gone; never returns."""
    let_owner_in(settings.workspace)
    remove_unfinished(settings.workspace)
    gc.freeze()
    asyncio.run(_serve(listener, control, settings))


async def _serve(listener: socket.socket, control: socket.socket, settings: Settings) -> None:
    await Server(Spawner(control), settings).accept_from(listener)


class Server:
    """Dispatches calls to their implementations."""

    def __init__(self, spawner: Spawner, settings: Settings) -> None:
        self._settings = settings
        self._workspace = settings.workspace
        self._spawner = spawner
        # In engines/local the cgroup is the user's, not the sandbox's.
        self._cgroup = Cgroup() if settings.contained else Cgroup(os.devnull)
        self._environment = tool_environment(dict(os.environb), real(settings.workspace))
        self._disk = DiskWatch(spawner, settings, KernelUse(self._cgroup.memory_limit_bytes()))
        tops = (settings.workspace,) if settings.contained else (settings.workspace, _TMP)
        self._disk_reading = DiskReading([real(top) for top in tops], self._disk.counting, unlinked=settings.contained)
        self._executor = Executor(spawner, self._cgroup, settings.workspace, self._environment, self._disk)
        self._processes: Processes | None = None
        self._proxy: ProxyPort | None = None
        self._attachments: Attachments | None = None
        self._uses = 0  # calls under way that use the sandbox
        self._health = Health(self._cgroup)
        self._call_slots = asyncio.Semaphore(CALLS_LIMIT)
        self._hangups = Hangups()
        self._posture: wire.Posture | None = None
        self._reading_posture = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept_from(self, listener: socket.socket) -> None:
        """Accept connections forever. Over the limit new ones wait in the kernel's queue."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        slots = asyncio.Semaphore(CONNECTIONS_LIMIT)
        while True:
            await slots.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                print(f"airlock daemon: cannot accept: {error}", file=sys.stderr)
                slots.release()
                await asyncio.sleep(0.05)  # no descriptors left; calls will free some
                continue
            task = loop.create_task(self._serve_connection(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: slots.release())

    async def _serve_connection(self, connection: socket.socket) -> None:
        with connection:
            if await self._is_tool_code(connection):
                return
            connection.setblocking(False)
            self._hangups.watch(connection)
            try:
                frames = FrameSocket(connection)
                while (frame := await frames.read()) is not None:
                    await self._serve_call(wire.Request.FromString(frame), frames)
            except (*CONNECTION_ERRORS, asyncio.CancelledError):
                pass  # closing is the answer, or the caller hung up; other connections are not affected
            except Exception:
                traceback.print_exc()
            finally:
                self._hangups.forget(connection)

    async def _is_tool_code(self, connection: socket.socket) -> bool:
        """Return whether the peer is a tool process of this sandbox, which must not be served."""
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(peer)
        if pid == os.getpid():
            # gVisor reports this process instead of the peer. Then connections are served only if the posture shows
            # that tool code cannot connect.
            return not (await self._read_posture()).socket_closed_to_tools
        # A peer outside the sandbox has no pid in this namespace.
        return bool(pid) and uid == self._settings.tool_uid

    async def _serve_call(self, request: wire.Request, frames: FrameSocket) -> None:
        call = request.WhichOneof("call")
        given = InputStream(frames)
        takes_input = (call == "exec" and request.exec.stdin) or (call == "write" and not request.write.inline)
        counted = call not in (*_TUNNELS, *_WAITS)
        self._health.calls += counted
        use = call not in (*_LOOKS, *_WAITS, "archive")  # files that are saved keep no sandbox from its end
        self._uses += use
        try:
            reply = await reply_of(self._answer(call, request, frames, given))
        finally:
            self._health.calls -= counted
            self._uses -= use
        if reply is not None:
            await frames.send(reply)
        if takes_input:
            await given.discard()

    async def _answer(
        self, call: str | None, request: wire.Request, frames: FrameSocket, given: InputStream
    ) -> wire.Reply | None:
        """Return the final frame, None if it has been sent."""
        if self._attachments is not None and self._attachments.retired and call not in _LOOKS:
            raise Fault(wire.FAILURE_KIND_RETIRED, "the sandbox is retired: no call begins in it any more")
        if call == "attach":
            await self._attach(request.attach, frames)
            return None
        if call == "health":
            running = self._processes.running() if self._processes else 0
            disk = await self._disk_reading.read() if request.health.count_disk else ()
            if disk and self._settings.contained:
                disk = (*disk, mounted_use(_TMP))
            return self._health.reply(running, *disk)
        if call is not None and call.startswith("process_"):
            let_owner_in(self._workspace)
            if self._processes is None:
                # Loaded with the first such call.
                from sandbox.daemon.programs.processes import Processes

                self._processes = Processes(self._spawner, self._cgroup, self._workspace, self._environment, self._disk)
            return await self._processes.answer(call, request)
        if call == "proxy" or call in _TUNNELS:
            return await self._answer_proxy(call, request, frames)
        async with self._call_slots:
            let_owner_in(self._workspace)
            if call == "archive":
                # Loaded with the first such call.
                from sandbox.daemon.files.archive import serve_archive

                self._hangups.watch_whole(frames.connection)
                await serve_archive(request.archive, frames, self._workspace)
                return None
            if call == "hello":
                posture = await self._read_posture()
                hello = wire.HelloReply(protocol_version=PROTOCOL_VERSION, posture=posture, build=BUILD)
                return wire.Reply(hello=hello)
            if call == "exec":
                await self._executor.execute(request.exec, frames, given)
                return None
            return await answer_file_call(request, frames, given, self._workspace, self._disk)

    async def _attach(self, request: wire.AttachRequest, frames: FrameSocket) -> None:
        if self._attachments is None:
            # Loaded with the first such call: a gateway on the same host has no need of it.
            from sandbox.daemon.serving.attachments import Attachments

            self._attachments = Attachments(lambda: self._uses > 0)
        await self._attachments.serve(request, frames)

    async def _answer_proxy(self, call: str, request: wire.Request, frames: FrameSocket) -> wire.Reply | None:
        # Loaded with the first such call: most sandboxes have no network.
        from sandbox.daemon.serving import proxy_port

        if self._proxy is None:
            self._proxy = proxy_port.ProxyPort()
        proxy = self._proxy
        if call == "proxy":
            if request.proxy.open:
                proxy.open()
            else:
                proxy.close()
            return wire.Reply(proxy=wire.ProxyReply(port=proxy.port))
        connecting = call == "port_connect"
        local = await (proxy_port.connected(request.port_connect, proxy) if connecting else proxy.accept())
        await proxy_port.serve_tunnel(frames, local, self._hangups)
        return None

    async def _read_posture(self) -> wire.Posture:
        """Return the posture, read once: nothing in the sandbox can change it."""
        if self._posture is None:
            async with self._reading_posture:
                if self._posture is None:
                    self._posture = await read_posture(self._spawner, self._cgroup, self._settings.socket)
        return self._posture
