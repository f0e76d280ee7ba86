"""LocalProcess: a daemon as a process of this machine, from its start to its end. See local_daemon.py."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import google.protobuf

from sandbox.client.channel import Channel
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.engines.local import local_daemon
from sandbox.engines.local.local_workspaces import remove_directory
from sandbox.errors import DaemonLost, SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb

# Where the packages are that the daemon consists of.
_PACKAGES = os.pathsep.join((str(Path(__file__).resolve().parents[3]), str(Path(google.protobuf.__file__).parents[2])))
_START_TIMEOUT_S = 10.0


class LocalProcess:
    """A daemon that serves the directories `workspace` and `tmp` of `root`; its socket is in `directory`.

    It ends, with everything it started, when this process does. Until then it keeps the descriptor `lock` open.
    """

    def __init__(self, root: Path, directory: Path, lock: int) -> None:
        self.channel = Channel(UnixAddress(directory))
        self._root = root
        self._directory = directory
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the daemon and wait until it answers; SandboxUnavailable if it does not."""
        try:
            with _listening(self._directory) as listener:
                self._process = self._started(listener.fileno())
            await self.channel.query(
                pb.Request(health=pb.HealthRequest()), "health", lambda _: None, timeout_s=_START_TIMEOUT_S
            )
        except (DaemonLost, OSError) as error:
            raise SandboxUnavailable(f"the sandbox daemon did not start: {error}") from error

    def _started(self, listener: int) -> subprocess.Popen[bytes]:
        # This process' environment may have secrets; programs inherit the search path only.
        inherited = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
        return subprocess.Popen(
            # Without site, which takes longer than the daemon's own start, and without the current directory.
            [sys.executable, "-S", "-P", "-m", local_daemon.__name__, str(self._root), str(listener)],
            env={**inherited, "LANG": "C.UTF-8", "PYTHONPATH": _PACKAGES, "TMPDIR": str(self._root / "tmp")},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener, self._lock),
            start_new_session=True,
        )

    def end(self) -> None:
        """End the daemon and everything it started, wait for that, and remove the temporary directories."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            wait_or_kill(self._process, 10.0)
        for directory in (self._root / "tmp", self._directory):
            remove_directory(directory)


def wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the end of a process that was asked to exit, and kill it when that takes longer."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listening(directory: Path) -> socket.socket:
    """Return a listening socket in a directory; early connections wait until the daemon is up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A path by descriptor is short however long the directory's is; a socket address has 108 bytes at most.
        listener.bind(f"/proc/self/fd/{handle}/{SOCKET_NAME}")
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(handle)
    return listener
