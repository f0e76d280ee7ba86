"""The address of a daemon on this machine: its Unix socket."""

import asyncio
import os
import socket
import stat
from pathlib import Path

from sandbox.errors import DaemonLost

SOCKET_NAME = "daemon.sock"


class UnixAddress:
    """Satisfies Address, for the socket in `directory`. Keeps one descriptor once it was opened."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket_fd: int | None = None

    async def open(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # A path by descriptor is short however long the directory's is; a socket address has 108 bytes at most.
            address = f"/proc/self/fd/{self._pinned_socket()}"
            deadline = asyncio.get_running_loop().time() + 5.0
            while True:
                try:
                    client.connect(address)
                except BlockingIOError:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                    # A Unix socket with a full backlog fails with EAGAIN and nothing signals free space, so connect()
                    # is retried.
                    await asyncio.sleep(0.002)
                else:
                    return client
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        if self._socket_fd is not None:
            os.close(self._socket_fd)
            self._socket_fd = None

    def _pinned_socket(self) -> int:
        # Opened once and never through a link: a daemon that replaces its socket with a link to another sandbox's
        # socket, or to the engine's, must not redirect the gateway.
        if self._socket_fd is None:
            found = os.open(self._directory / SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                os.close(found)
                raise DaemonLost(f"{SOCKET_NAME} is not a socket")
            self._socket_fd = found
        return self._socket_fd
