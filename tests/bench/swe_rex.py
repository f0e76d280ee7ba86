"""The peer SWE-ReX: its server in a container of our sandbox image, its own client in a process of its own.

The package is installed into an environment under .build, and is no dependency of ours. The client reaches the
container's address at once, without Docker's proxy, which is the peer's advantage.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path

VERSION = "1.4.0"
# Its client imports it, and its package does not ask for it.
_REQUIREMENTS = (f"swe-rex=={VERSION}", "aiohttp")
_ROOT = Path(__file__).parents[2]
_HOME = _ROOT / ".build" / "bench-venv"
_IMAGE = "airlock-sandbox"
_PORT = 8000


class SweRex:
    """The peer, ready."""

    def __init__(self, client: asyncio.subprocess.Process) -> None:
        self._client = client

    async def seconds(self, what: str, calls: int, clients: int = 1) -> float:
        """Return how long so many calls of "execute", "read_file" or "write_file" take together."""
        return float(await self.ask(f"{what} {clients} {calls}\n"))

    async def ask(self, line: str) -> str:
        """Send a line, when there is one; return the next that comes."""
        stdin, stdout = self._client.stdin, self._client.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the client has no pipes")
        stdin.write(line.encode())
        answer = (await stdout.readline()).decode()
        if not answer:
            raise RuntimeError("the client of SWE-ReX ended")
        return answer


@contextlib.asynccontextmanager
async def swe_rex() -> AsyncIterator[SweRex]:
    """Have the peer until the block ends."""
    token = secrets.token_hex(8)
    packages = await asyncio.to_thread(_installed)
    container = _docker(
        "run", "--detach", "--rm", "--label", "airlock.bench=swe-rex", "--volume", f"{packages}:/swerex:ro",
        "--env", "PYTHONPATH=/swerex", "--entrypoint", "python3", _IMAGE,
        "-m", "swerex.server", "--port", str(_PORT), "--auth-token", token,
    )  # fmt: skip
    try:
        address = _docker("inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", container)
        client = await asyncio.create_subprocess_exec(
            _HOME / "bin" / "python",
            Path(__file__).with_name("swe_rex_client.py"),
            f"http://{address}:{_PORT}",
            token,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
        )
        try:
            peer = SweRex(client)
            if (await peer.ask("")).strip() != "ready":
                raise RuntimeError("the client of SWE-ReX did not start")
            yield peer
        finally:
            client.terminate()
            await client.wait()
    finally:
        _docker("kill", container)


def _installed() -> Path:
    """Install the peer unless it is there; return the directory of its packages."""
    python = _HOME / "bin" / "python"
    done = _HOME / "installed"
    if not done.exists() or done.read_text(encoding="ascii") != VERSION:
        subprocess.run([sys.executable, "-m", "venv", "--clear", _HOME], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *_REQUIREMENTS], check=True, stderr=subprocess.DEVNULL
        )
        done.write_text(VERSION, encoding="ascii")
    reported = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(reported.stdout.strip())


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()
