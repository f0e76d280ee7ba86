"""What LocalFS has done in another process, for it may take long or never end: searches, long listings, whole trees.

That process is started when it is first needed, is this process' own, and ends with it. It forks; this one, which may
have any threads, never does. See local_work_server.py.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from sandbox.client.connection import Connection
from sandbox.engines.local import local_work_server
from sandbox.errors import DaemonLost, SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb

_PACKAGES = Path(__file__).resolve().parents[3]
_STARTING = threading.Lock()
_FIRST_RETRY_S = 0.001
_END_S = 5.0


class _Server:
    """The other process, and the socket over which it is given work."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        with theirs:
            # Of this process' environment, which may have secrets, it needs nothing but where its modules are.
            self._process = subprocess.Popen(
                [sys.executable, "-m", local_work_server.__name__, str(theirs.fileno())],
                env={"PYTHONPATH": str(_PACKAGES)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process, which ends that one
            )
        self.owner = os.getpid()

    @property
    def lives(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        """Have it end, which it does when the control socket closes."""
        self.control.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_servers: list[_Server] = []


def _server() -> _Server:
    """Return the process that lives, started where none does."""
    with _STARTING:
        if not _servers or not _servers[-1].lives:
            if not _servers:
                atexit.register(_end_all)
            _servers.append(_Server())
        return _servers[-1]


def _end_all() -> None:
    for server in _servers:
        if server.owner == os.getpid():
            server.end()


async def work_elsewhere(request: pb.Request, root: str, *, one_name: bool) -> pb.Reply:
    """Return the reply to a request, its failure as well; SandboxUnavailable where the other process does not answer.

    Who gives up has the work ended.
    """
    server = await asyncio.to_thread(_server)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    connection = Connection(near)
    try:
        with far:
            await _give(server, far, (b"1" if one_name else b"0") + os.fsencode(root))
        rest = connection.send_at_once(request)
        if rest:
            await connection.send_rest(rest)
        return await connection.receive()
    except (DaemonLost, OSError) as error:
        raise SandboxUnavailable("the process that searches files was killed, perhaps for memory; try again") from error
    finally:
        connection.close()


async def _give(server: _Server, connection: socket.socket, said: bytes) -> None:
    pause_s = _FIRST_RETRY_S
    while True:
        try:
            socket.send_fds(server.control, [said], [connection.fileno()])
        except BlockingIOError:  # it is behind
            await asyncio.sleep(pause_s)
            pause_s *= 2
        else:
            return
