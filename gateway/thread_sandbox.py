"""A thread's files and shell: what the agent's tools are given. Each operation borrows the thread's sandbox.

The sandbox is made on first use, and made again, with the same workspace, when it was removed for being idle or died.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager

from agent.filesystem import OnOutput
from sandbox.engine import Sandbox, SandboxSpec
from sandbox.errors import SandboxError
from sandbox.filesystem import EditResult, EntriesPage, Entry, ExecResult, GrepPage, LinesPage
from sandbox.sandbox_keeper import SandboxKeeper


class ThreadSandbox:
    """Satisfies agent.filesystem.FileSystem and agent.filesystem.Shell."""

    def __init__(self, keeper: SandboxKeeper, spec: SandboxSpec) -> None:
        self._keeper = keeper
        self._spec = spec

    def _borrow(self) -> AbstractAsyncContextManager[Sandbox]:
        return self._keeper.acquire(self._spec)

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """List a directory."""
        async with self._borrow() as sandbox:
            return await sandbox.files.ls(path, offset=offset, limit=limit)

    async def stat(self, path: str) -> Entry:
        """Describe a path."""
        async with self._borrow() as sandbox:
            return await sandbox.files.stat(path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a file's bytes."""
        async with self._borrow() as sandbox:
            async for chunk in sandbox.files.read(path, offset=offset, length=length):
                yield chunk

    async def read_lines(self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536) -> LinesPage:
        """Read a page of lines."""
        async with self._borrow() as sandbox:
            return await sandbox.files.read_lines(path, offset=offset, limit=limit, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry:
        """Replace a file atomically."""
        async with self._borrow() as sandbox:
            return await sandbox.files.write(path, data)

    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult:
        """Replace an exact match."""
        async with self._borrow() as sandbox:
            return await sandbox.files.edit(path, old_text, new_text, replace_all=replace_all)

    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage:
        """Find paths."""
        async with self._borrow() as sandbox:
            return await sandbox.files.glob(path, pattern, offset=offset, limit=limit)

    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage:
        """Search contents."""
        async with self._borrow() as sandbox:
            return await sandbox.files.grep(
                path, pattern, include=include, offset=offset, limit=limit, timeout_s=timeout_s
            )

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        async with self._borrow() as sandbox:
            await sandbox.files.mkdir(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a path."""
        async with self._borrow() as sandbox:
            await sandbox.files.remove(path, recursive=recursive)

    async def rename(self, path: str, new_path: str) -> None:
        """Rename a path."""
        async with self._borrow() as sandbox:
            await sandbox.files.rename(path, new_path)

    async def execute(
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command line; a sandbox that cannot be had is an outcome, for it is no fault of the command."""
        try:
            async with self._borrow() as sandbox:
                return await sandbox.shell.execute(
                    command,
                    timeout_s=timeout_s,
                    call_id=call_id,
                    limit_chars=limit_chars,
                    head_chars=head_chars,
                    tail_chars=tail_chars,
                    on_output=on_output,
                )
        except SandboxError as error:
            return ExecResult(outcome="failed_to_start", message=str(error))
