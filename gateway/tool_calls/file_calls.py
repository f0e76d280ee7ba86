"""File operations of services take the path of every tool call.

Each class runs one call in place of the tools: the policy judges its path, and the journal and the audit record it. The
bytes do not pass through the result, and nothing is redacted.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from pydantic import JsonValue

from agent.messages import ToolCall, ToolResult
from agent.tools.tool import ToolContext
from gateway.errors import DeadlineExceeded, PermissionDenied
from gateway.tool_calls.service_executor import ServiceExecutor
from sandbox.errors import NotFound
from sandbox.protocols import EntriesPage, Entry

Piece = tuple[Entry, bytes]
"""A file and a piece of its content."""
_NOTHING = EntriesPage((), 0, more=False)


class FileCall(ServiceExecutor):
    """One operation on one path. A hook may rewrite only the path; the rest is what the service `asked` for."""

    moved_bytes: int = 0
    asked: Mapping[str, JsonValue] = MappingProxyType({})

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        del context
        arguments = call.arguments or {}
        if {**arguments, "path": None} != {**self.asked, "path": None}:
            raise PermissionDenied("a hook rewrote a file operation; only its path may be changed")
        return ToolResult(content=(await self._work(str(arguments["path"]))).encode())

    async def _work(self, path: str) -> str:
        """Run the operation; return the text of its result, for the journal."""
        raise NotImplementedError


@dataclass(eq=False)
class Upload(FileCall):
    """Writes what a client streams."""

    audit_kind = "file_write"
    chunks: AsyncIterator[bytes]

    async def _work(self, path: str) -> str:
        await self.sandbox.write(path, self._counted())
        return f"{self.moved_bytes} bytes written"

    async def _counted(self) -> AsyncIterator[bytes]:
        async for chunk in self.chunks:
            self.moved_bytes += len(chunk)
            yield chunk


@dataclass(eq=False)
class Download(FileCall):
    """Streams a file to a client, from `offset` and of `limit_bytes`, None for all.

    The queue `pieces` is short, so a slow client slows the sandbox, not the gateway. An empty file yields one piece.
    """

    audit_kind = "file_read"
    pieces: asyncio.Queue[Piece | None]
    stall_limit_s: float
    offset: int = 0
    limit_bytes: int | None = None

    async def _work(self, path: str) -> str:
        async with aclosing(self.sandbox.read_known(path, offset=self.offset, length=self.limit_bytes)) as pieces:
            async for entry, chunk in pieces:
                self.moved_bytes += len(chunk)
                try:
                    async with asyncio.timeout(self.stall_limit_s):  # a stalled reader must not keep a sandbox leased
                        await self.pieces.put((entry, chunk))
                except TimeoutError:
                    stalled = f"nothing was read for {self.stall_limit_s:g} s; read on from where you are"
                    raise DeadlineExceeded(stalled) from None
        return f"{self.moved_bytes} bytes read"


@dataclass(eq=False)
class Listing(FileCall):
    """Lists a page of a directory, or with a `pattern` of what matches below it."""

    audit_kind = "file_list"
    pattern: str
    offset: int
    limit: int
    page: EntriesPage = _NOTHING

    async def _work(self, path: str) -> str:
        find = partial(self.sandbox.glob, path, self.pattern) if self.pattern else partial(self.sandbox.ls, path)
        self.page = await find(offset=self.offset, limit=self.limit)
        # Only the names can grow without bound.
        self.moved_bytes = sum(len(entry.name.encode(errors="surrogateescape")) for entry in self.page.entries)
        return f"{len(self.page.entries)} entries"


class Look(FileCall):
    """Describes one path."""

    audit_kind = "file_stat"
    entry: Entry | None = None

    async def _work(self, path: str) -> str:
        self.entry = await self.sandbox.stat(path)
        return self.entry.type


@dataclass(eq=False)
class Removal(FileCall):
    """Removes one path, and with `recursive` what is below it."""

    audit_kind = "file_remove"
    recursive: bool
    missing_ok: bool

    async def _work(self, path: str) -> str:
        try:
            await self.sandbox.remove(path, recursive=self.recursive)
        except NotFound:
            if not self.missing_ok:
                raise
            return "nothing was there"
        return "removed"


class DirectoryMaking(FileCall):
    """Makes a directory and its parents."""

    audit_kind = "directory_make"

    async def _work(self, path: str) -> str:
        await self.sandbox.mkdir(path)
        return "made"
