"""The workspace of one attempt, used with the service's key: what the agent gets, and what it left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from airlock import Client

_ROOT = "/workspace"
_AT_ONCE = 8
_FILES_LIMIT = 5_000
_LIMIT_BYTES = 64 << 20
_PROBE_TIMEOUT_S = 60


class TooMuchLeft(Exception):
    """The agent left more in the workspace than is looked at. The text says what."""


@dataclass(frozen=True)
class Workspace:
    """The files of a thread, by their paths relative to /workspace."""

    client: Client
    thread: str

    async def fill(self, files: Mapping[str, bytes]) -> None:
        """Write files, a few at a time."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def write(path: str, data: bytes) -> None:
            async with slots:
                await self.client.write_file(self.thread, f"{_ROOT}/{path}", data)

        async with asyncio.TaskGroup() as writing:
            for path, data in files.items():
                writing.create_task(write(path, data))

    async def files(self) -> dict[str, bytes]:
        """Return all files but the agent's own, such as evicted results. Raises TooMuchLeft."""
        found: list[str] = []
        size_bytes = 0
        async for entry in self.client.list_files(self.thread, _ROOT, pattern="**/*"):
            if entry.kind == "file":
                found.append(entry.name)
                size_bytes += entry.size_bytes
            if len(found) > _FILES_LIMIT or size_bytes > _LIMIT_BYTES:
                raise TooMuchLeft(f"the workspace has more than {_FILES_LIMIT:,} files or {_LIMIT_BYTES:,} bytes")
        return {path: await self.client.read_file(self.thread, f"{_ROOT}/{path}") for path in found}

    async def python(self, program: str) -> str:
        """Return what a Python program prints, or the last line of what it says when it fails."""
        argv = ["python3", "-B", "-c", program]
        done = await self.client.run_program(argv, thread=self.thread, cwd=_ROOT, timeout_s=_PROBE_TIMEOUT_S)
        if done.exit_code == 0:
            return done.stdout.strip()
        return f"{done.outcome}: {''.join((done.stderr.strip() or done.message).splitlines()[-1:])}"
