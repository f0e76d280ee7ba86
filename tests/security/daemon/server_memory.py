"""The memory of the server inside a sandbox, seen from the host."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from sandbox.daemon.settings import DEFAULTS
from tests.security.daemon.daemon_container import Sandbox


class ServerMemory:
    """How much the server's resident memory grows within the `with`, at its worst, seen from the host."""

    def __init__(self, sandbox: Sandbox) -> None:
        # Only the server has this user. What it was started with cannot always be read on a busy machine.
        listed = sandbox.container.top(ps_args="-eo pid,uid")
        (self._pid,) = [pid for pid, uid in listed["Processes"] if uid == DEFAULTS["daemon-uid"]]
        self.growth_bytes = 0

    def _bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    def __enter__(self) -> Self:
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # forgets the peak
        self._before_bytes = self._bytes("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.growth_bytes = self._bytes("VmHWM") - self._before_bytes
