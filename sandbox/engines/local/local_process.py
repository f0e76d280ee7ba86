"""LocalProcess: a daemon as a process of this machine, from its start to its end. See local_daemon.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import google.protobuf

from sandbox.client.channel import SOCKET_NAME, Channel
from sandbox.engines.local import local_daemon
from sandbox.errors import DaemonLost, SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb

# Where the packages are that the daemon consists of.
_PACKAGES = os.pathsep.join((str(Path(__file__).resolve().parents[3]), str(Path(google.protobuf.__file__).parents[2])))
_BACKLOG = 512
_START_LIMIT_S = 10.0
_END_LIMIT_S = 10.0


class LocalProcess:
    """A daemon that serves the directories `workspace` and `tmp` of `root`; its socket is in `directory`.

    It ends, with all that it started, when this process does. Until it has ended it keeps the descriptor `lock` open.
    """

    def __init__(self, root: Path, directory: Path, *, lock: int) -> None:
        self.channel = Channel(directory)
        self._root = root
        self._directory = directory
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the daemon and wait until it answers; SandboxUnavailable when it does not come up."""
        try:
            with _listening(self._directory) as listener:
                self._process = self._started(listener.fileno())
            await self.channel.ask(pb.Request(health=pb.HealthRequest()), "health", timeout_s=_START_LIMIT_S)
        except (DaemonLost, OSError) as error:
            raise SandboxUnavailable(f"the sandbox daemon did not come up: {error}") from error

    def _started(self, listener: int) -> subprocess.Popen[bytes]:
        # Of this process' environment, which may have secrets, programs get the way to other programs.
        inherited = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
        return subprocess.Popen(
            # Without site, which takes longer than the daemon's own start, and without anything from this directory.
            [sys.executable, "-S", "-P", "-m", local_daemon.__name__, str(self._root), str(listener)],
            env={**inherited, "LANG": "C.UTF-8", "PYTHONPATH": _PACKAGES, "TMPDIR": str(self._root / "tmp")},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener, self._lock),
            start_new_session=True,
        )

    def end(self) -> None:
        """End the daemon and all that it started, and wait for that."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _listening(directory: Path) -> socket.socket:
    """Return a socket that listens in a directory; whoever connects before the daemon is up waits for it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The descriptor's path is short whatever the directory's is (108 bytes are the limit of a socket address).
        listener.bind(f"/proc/self/fd/{handle}/{SOCKET_NAME}")
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(handle)
    return listener
