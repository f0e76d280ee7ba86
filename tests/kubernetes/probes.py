"""A container's probes: of TCP, HTTP and commands."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

from tests.kubernetes.containers import ContainerStart
from tests.kubernetes.store import Made


async def passes(probe: Made, start: ContainerStart) -> bool:
    """Return whether a container passes a probe within its time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(probe["timeoutSeconds"]):
            if "exec" in probe:
                return await asyncio.to_thread(_runs, probe["exec"]["command"], start)
            about = probe.get("tcpSocket") or probe["httpGet"]
            return await _answers(about.get("host", start.pod_ip), _port(about["port"], start), probe.get("httpGet"))
    return False


def _runs(command: list[str], start: ContainerStart) -> bool:
    """Run a command; paths of the container are those of this machine's."""
    words = [str(start.path(word)) if word.startswith("/") and start.path(word).exists() else word for word in command]
    return subprocess.run(words, env=dict(start.environment), capture_output=True, check=False).returncode == 0


async def _answers(host: str, port: int, get: Made | None) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if get is None:
            return True
        writer.write(f"GET {get.get('path', '/')} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        line = await reader.readline()
        return line.split()[1:2] < [b"400"] if line else False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _port(port: int | str, start: ContainerStart) -> int:
    if isinstance(port, int):
        return port
    return next(int(item["containerPort"]) for item in start.spec["ports"] if item.get("name") == port)
