"""The worker process that makes LocalFS's file calls, some of which are slow or unbounded.

It starts with the first call, serves this process alone and exits with it. The worker forks; this process, which may
have threads, never does. See file_worker_process.py.
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

from sandbox.engines.local import file_worker_process
from sandbox.errors import SandboxUnavailable

_PACKAGES = Path(__file__).resolve().parents[3]
_STARTING = threading.Lock()
_FIRST_RETRY_S = 0.001
_EXIT_TIMEOUT_S = 5.0


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
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_workers: list[_Worker] = []


def _worker() -> _Worker:
    """Return the live worker, started if there is none."""
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
    pause_s = _FIRST_RETRY_S
    while True:
        try:
            socket.send_fds(worker.control, [root], [connection.fileno()])
        except BlockingIOError:  # the worker is behind
            await asyncio.sleep(pause_s)
            pause_s *= 2
        else:
            return
