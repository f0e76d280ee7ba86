"""SshTunnel: the socket of a Docker engine on another machine, brought here by the program ssh.

It logs in as the user's own `ssh` does, without a question: keys, known hosts and ~/.ssh/config count. The docker
package would need a second implementation of SSH, which has none of that, or a process for each connection.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

_START_S = 15.0
_PAUSE_S = 0.02
_SOCKET = "/var/run/docker.sock"
# A machine that vanished is noticed within a quarter of a minute, and the next request logs in again.
_OPTIONS = (
    *("BatchMode=yes", "ExitOnForwardFailure=yes", "StreamLocalBindUnlink=yes", "ConnectTimeout=10"),
    *("ServerAliveInterval=5", "ServerAliveCountMax=3"),
)


class SshTunnel:
    """The tunnel to `ssh://[USER@]HOST[:PORT][/PATH/OF/THE/SOCKET]`. Not for two threads at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._directory = Path(tempfile.mkdtemp(prefix="airlock-ssh-"))
        self.socket = self._directory / "docker.sock"
        self._ssh: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Have the tunnel, again if it broke; raises OSError with what ssh says."""
        if self._ssh is not None and self._ssh.poll() is None:
            return
        self._end()
        self.socket.unlink(missing_ok=True)
        with (self._directory / "said").open("wb") as said:
            # It ends with this process, however that ends: `cat` there ends with its input.
            self._ssh = subprocess.Popen(
                [*self._command(), "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
            )
        deadline_s = time.monotonic() + _START_S
        while not self.socket.exists():
            if self._ssh.poll() is not None or time.monotonic() > deadline_s:
                self._end()
                raise OSError(f"ssh: {self._said() or 'no connection in time'}")
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _command(self) -> list[str]:
        parts = urlsplit(self._address)
        there = parts.path if parts.path not in ("", "/") else _SOCKET
        options = [word for option in _OPTIONS for word in ("-o", option)]
        port = ["-p", str(parts.port)] if parts.port else []
        user = ["-l", parts.username] if parts.username else []
        # "--": a host is no option.
        return ["ssh", "-T", *options, *port, *user, "-L", f"{self.socket}:{there}", "--", parts.hostname or ""]

    def _said(self) -> str:
        text = (self._directory / "said").read_text(encoding="utf-8", errors="replace")
        return " ".join(text.split())[-500:]

    def _end(self) -> None:
        if self._ssh is None:
            return
        assert self._ssh.stdin is not None  # noqa: S101 - for the type checker
        self._ssh.stdin.close()
        self._ssh.kill()
        self._ssh.wait()
        self._ssh = None
