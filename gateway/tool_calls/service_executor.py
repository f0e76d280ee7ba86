"""Runs a service's call in place of the tools; the service has made and checked the arguments itself.

File operations of services take the path of every tool call: the policy judges the path, and the journal and the audit
record the call. The bytes do not pass through the result, and nothing is redacted.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from pydantic import JsonValue

from agent.capabilities.attachments import AttachedFile, attached_file
from agent.filesystem import FileSystem
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tool_call import JudgedCall, Slot
from agent.tools.tool import ToolContext
from gateway.audit.call_audit import TOOL_CALL
from gateway.errors import AirlockError, DeadlineExceeded, InvalidArgument, PermissionDenied
from gateway.storage.audit_store import AuditEntry
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import NotFound, SandboxError, said_outside
from sandbox.protocols import EntriesPage, Entry

Piece = tuple[Entry, bytes]
"""A file and a piece of its content."""
_NOTHING = EntriesPage((), 0, more=False)


class ServiceExecutor:
    """A ToolExecutor of one call that lists no tools; subclasses implement `_run`.

    `sandbox` is set before the call is judged, and `workspace`, the same as an agent's tools see it: without secrets.
    `error` is for the service to raise. `moved_bytes` counts what was streamed past the result so far, None if nothing
    is, and `input_bytes` what a program was sent as its input. `audit_kind` is the kind of the call's audit entry. One
    that is `read_only` changes nothing, and shows nothing but its result.
    """

    audit_kind = TOOL_CALL
    read_only = False
    moved_bytes: int | None = None
    input_bytes: int = 0
    sandbox: ThreadSandbox
    workspace: FileSystem
    error: SandboxError | AirlockError | None = None

    def audited(self, entry: AuditEntry) -> AuditEntry:
        """Return the audit entry of the call with what is special about it."""
        size_bytes = entry.size_bytes if self.moved_bytes is None else self.moved_bytes
        return replace(entry, kind=self.audit_kind, size_bytes=size_bytes)

    def specs(self) -> Sequence[ToolSpec]:
        """Return no tools: no model calls it."""
        return ()

    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call as it is: the service has made it in its final form."""
        return JudgedCall.of(call, read_only=self.read_only)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        try:
            return await self._run(call.call, context)
        except (SandboxError, AirlockError) as error:
            self.error = error
            return ToolResult.error(said_outside(error))

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        raise NotImplementedError


EXECUTOR = Slot[ServiceExecutor]("service executor")
"""What runs a service's call in place of the tools."""


# --- file operations ---


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
                    stalled = f"the client read nothing for {self.stall_limit_s:g} s; resume after the last byte read"
                    raise DeadlineExceeded(stalled) from None
        return f"{self.moved_bytes} bytes read"


@dataclass(eq=False)
class Listing(FileCall):
    """Lists a page of a directory, or with a `pattern` of what matches below it."""

    audit_kind = "file_list"
    read_only = True
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
    read_only = True
    entry: Entry | None = None

    async def _work(self, path: str) -> str:
        self.entry = await self.sandbox.stat(path)
        return self.entry.type


@dataclass(eq=False)
class Viewing(FileCall):
    """Looks at a file that the model is to be shown with the task of a run."""

    audit_kind = "file_read"
    read_only = True
    limit_bytes: int
    seen: AttachedFile | None = None

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Return the result that view_file would, for the rules on results."""
        result = await super()._run(call, context)
        return result if self.seen is None else replace(result, attachments=(self.seen.attachment,))

    async def _work(self, path: str) -> str:
        try:
            self.seen = await attached_file(self.workspace, path, self.limit_bytes)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        self.moved_bytes = self.seen.attachment.size_bytes
        return str(self.seen)


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
