"""LocalFS: the files of this machine, for tests and trusted use. Satisfies agent.filesystem.FileSystem.

The daemon's file calls, some of which are slow or unbounded, run in a worker process (file_worker_process.py), so both
file systems behave alike and have the same bounds. There is no sandbox: the caller may do whatever this user may.

The worker starts with the first call, serves this process alone and exits with it. The worker forks; this process,
which may have threads, never does.
"""

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from sandbox.client.channel import Call, Channel, Connection
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.unix_address import UnixAddress
from sandbox.engines.local import file_worker_process
from sandbox.engines.local.local_process import wait_or_kill
from sandbox.errors import DaemonLost, NotFound, SandboxUnavailable
from sandbox.protocols import WORKSPACE
from sandbox.v1 import channel_pb2 as pb

_PACKAGES = Path(__file__).resolve().parents[3]
_STARTING = threading.Lock()


class _Worker:
    """A worker process, and the socket that hands it connections."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", file_worker_process.__name__, str(theirs.fileno())],
                env={"PYTHONPATH": str(_PACKAGES)},  # this process' environment may have secrets
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process, which ends the worker
            )
        self.owner = os.getpid()

    @property
    def lives(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        """Close the control socket, on which the worker exits."""
        self.control.close()
        wait_or_kill(self._process, 5.0)


_workers: list[_Worker] = []


def _worker() -> _Worker:
    with _STARTING:
        if not _workers or not _workers[-1].lives:
            if not _workers:
                atexit.register(_end_all)
            _workers.append(_Worker())
        return _workers[-1]


def _end_all() -> None:
    for worker in _workers:
        if worker.owner == os.getpid():
            worker.end()


async def connect(root: str) -> socket.socket:
    """Return a connection for one call in a root directory; closing it cancels the call."""
    worker = await asyncio.to_thread(_worker)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with far:
            await _send(worker, far, os.fsencode(root))
    except BaseException as error:
        near.close()
        if isinstance(error, OSError):
            raise SandboxUnavailable(f"the process that works on files does not answer: {error}") from error
        raise
    return near


async def _send(worker: _Worker, connection: socket.socket, root: bytes) -> None:
    pause_s = 0.001
    while True:
        try:
            socket.send_fds(worker.control, [root], [connection.fileno()])
        except BlockingIOError:  # the worker is behind
            await asyncio.sleep(pause_s)
            pause_s *= 2
        else:
            return


class LocalFS(RemoteFS):
    """Files of this machine. With `root`, that directory appears as /workspace and nothing else can be reached.

    `refuse_hard_links` refuses the content of files with more than one name, as RemoteFS does.
    """

    def __init__(self, root: Path | None = None, *, refuse_hard_links: bool = False) -> None:
        # The daemon refuses links anywhere in a path, so the root is resolved.
        channel = _WorkerChannel(str(root.resolve(strict=True)) if root is not None else None)
        super().__init__(channel, refuse_hard_links=refuse_hard_links)


class _WorkerChannel(Channel):
    """A connection to the worker for each call; a worker that was killed is replaced for the next one."""

    def __init__(self, root: str | None) -> None:
        super().__init__(UnixAddress(Path()))
        self._root = root

    def mark_lost(self, error: DaemonLost) -> None:
        """Carry on: no later call uses the same connection."""

    async def _take(self) -> Connection:
        return _WorkerConnection(await connect(self._root or WORKSPACE), self._root)

    def _end(self, call: Call) -> None:
        call.connection.close()


class _WorkerConnection(Connection):
    """Translates paths between /workspace and the root."""

    def __init__(self, connected: socket.socket, root: str | None) -> None:
        super().__init__(connected)
        self._root = root

    def send_at_once(self, message: pb.Request | pb.Input) -> memoryview:
        if isinstance(message, pb.Request) and self._root is not None:
            asked = getattr(message, message.WhichOneof("call") or "")
            asked.path = self._real(asked.path)
            if isinstance(asked, pb.RenameRequest):
                asked.new_path = self._real(asked.new_path)
        return super().send_at_once(message)

    async def receive(self) -> pb.Reply:
        try:
            return self._shown(await super().receive())
        except DaemonLost as error:
            raise _killed() from error

    async def receive_piece(self) -> bytes | pb.Reply:
        try:
            piece = await super().receive_piece()
        except DaemonLost as error:
            raise _killed() from error
        return piece if isinstance(piece, bytes) else self._shown(piece)

    def _real(self, path: str) -> str:
        if path != WORKSPACE and not path.startswith(f"{WORKSPACE}/"):
            raise NotFound(f"{path} does not exist: this file system contains only {WORKSPACE}")
        return (self._root or "") + path.removeprefix(WORKSPACE)

    def _shown(self, reply: pb.Reply) -> pb.Reply:
        if self._root is None:
            return reply
        if reply.HasField("failure"):
            reply.failure.message = reply.failure.message.replace(self._root, WORKSPACE)
        root, workspace = os.fsencode(self._root), WORKSPACE.encode()
        for entry in reply.entries.entries:
            if entry.name.startswith(root):  # glob's; those of ls are bare names
                entry.name = workspace + entry.name.removeprefix(root)
        for match in reply.grep.matches:
            match.path = workspace + match.path.removeprefix(root)
        return reply


def _killed() -> SandboxUnavailable:
    return SandboxUnavailable("the process that works on files was killed, perhaps for memory; try again")
