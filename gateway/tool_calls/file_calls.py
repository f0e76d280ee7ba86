"""File operations of services take the path of every tool call.

Each class runs one call in place of the tools: the policy judges its path, and the journal and the audit record it. The
bytes do not pass through the result, and nothing is redacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from pydantic import JsonValue

from agent.messages import ToolCall, ToolResult
from agent.tools.tool import ToolContext
from gateway.errors import DeadlineExceeded, PermissionDenied
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import NotFound
from sandbox.protocols import EntriesPage, Entry

Piece = tuple[Entry, bytes]
"""A file and a piece of its content."""


class FileCall(ServiceExecutor):
    """One operation on one path. A hook may rewrite only the path; the rest is what the service `asked` for."""

    def __init__(self, sandbox: ThreadSandbox) -> None:
        super().__init__(sandbox)
        self.moved_bytes = 0
        self.asked: Mapping[str, JsonValue] = {}

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        del context
        arguments = call.arguments or {}
        if {**arguments, "path": None} != {**self.asked, "path": None}:
            raise PermissionDenied("a hook rewrote a file operation; only its path may be changed")
        return ToolResult(content=(await self._work(str(arguments["path"]))).encode())

    async def _work(self, path: str) -> str:
        """Run the operation; return the text of its result, for the journal."""
        raise NotImplementedError


class Upload(FileCall):
    """Writes what a client streams."""

    audit_kind = "file_write"

    def __init__(self, sandbox: ThreadSandbox, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(sandbox)
        self._chunks = chunks
        self.size_bytes = 0

    async def _work(self, path: str) -> str:
        await self._sandbox.write(path, self._counted())
        return f"{self.size_bytes} bytes written"

    async def _counted(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            self.size_bytes += len(chunk)
            self.moved_bytes = self.size_bytes
            yield chunk


class Download(FileCall):
    """Streams a file to a client, from `offset` and of `limit_bytes`, None for all.

    The queue `pieces` is short, so a slow client slows the sandbox, not the gateway. An empty file yields one piece.
    """

    audit_kind = "file_read"

    def __init__(
        self,
        sandbox: ThreadSandbox,
        pieces: asyncio.Queue[Piece | None],
        stall_limit_s: float,
        *,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__(sandbox)
        self._pieces = pieces
        self._stall_limit_s = stall_limit_s
        self._offset = offset
        self._limit_bytes = limit_bytes

    async def _work(self, path: str) -> str:
        read = self._sandbox.read_known(path, offset=self._offset, length=self._limit_bytes)
        async with aclosing(read) as pieces:
            async for entry, chunk in pieces:
                self.moved_bytes += len(chunk)
                try:
                    async with asyncio.timeout(self._stall_limit_s):  # a stalled reader must not keep a sandbox leased
                        await self._pieces.put((entry, chunk))
                except TimeoutError:
                    stalled = f"nothing was read for {self._stall_limit_s:g} s; read on from where you are"
                    raise DeadlineExceeded(stalled) from None
        return f"{self.moved_bytes} bytes read"


class Listing(FileCall):
    """Lists a page of a directory, or with a `pattern` of what matches below it."""

    audit_kind = "file_list"

    def __init__(self, sandbox: ThreadSandbox, pattern: str, *, offset: int, limit: int) -> None:
        super().__init__(sandbox)
        self._pattern = pattern
        self._offset = offset
        self._limit = limit
        self.page = EntriesPage((), 0, more=False)

    async def _work(self, path: str) -> str:
        sandbox, offset, limit = self._sandbox, self._offset, self._limit
        if self._pattern:
            self.page = await sandbox.glob(path, self._pattern, offset=offset, limit=limit)
        else:
            self.page = await sandbox.ls(path, offset=offset, limit=limit)
        # Only the names can grow without bound.
        self.moved_bytes = sum(len(entry.name.encode(errors="surrogateescape")) for entry in self.page.entries)
        return f"{len(self.page.entries)} entries"


class Look(FileCall):
    """Describes one path."""

    audit_kind = "file_stat"

    def __init__(self, sandbox: ThreadSandbox) -> None:
        super().__init__(sandbox)
        self.entry: Entry | None = None

    async def _work(self, path: str) -> str:
        self.entry = await self._sandbox.stat(path)
        return self.entry.type


class Removal(FileCall):
    """Removes one path, and with `recursive` what is below it."""

    audit_kind = "file_remove"

    def __init__(self, sandbox: ThreadSandbox, *, recursive: bool, missing_ok: bool) -> None:
        super().__init__(sandbox)
        self._recursive = recursive
        self._missing_ok = missing_ok

    async def _work(self, path: str) -> str:
        try:
            await self._sandbox.remove(path, recursive=self._recursive)
        except NotFound:
            if not self._missing_ok:
                raise
            return "nothing was there"
        return "removed"


class DirectoryMaking(FileCall):
    """Makes a directory and its parents."""

    audit_kind = "directory_make"

    async def _work(self, path: str) -> str:
        await self._sandbox.mkdir(path)
        return "made"
