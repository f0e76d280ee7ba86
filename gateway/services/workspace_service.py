"""WorkspaceService: transfers files to and from a thread's sandbox, and lists them.

Nothing is redacted here: the caller is the tenant's own service, not a model, and files must come back unchanged.
"""

import asyncio
import posixpath
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from agent import errors as agent_errors
from agent.tools.paths import WORKSPACE, resolve
from airlock.v1 import workspace_service_pb2 as pb
from gateway.errors import InvalidArgument, InvalidPath, NotFound, TooLarge
from gateway.services.messages import STALL_LIMIT_S, in_time, message, queued, raise_refused, timestamp
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.support.paging import page_size, place_of, token_of
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.service_executor import (
    DirectoryMaking,
    Download,
    FileCall,
    Listing,
    Look,
    Piece,
    Removal,
    Upload,
)
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb
from sandbox.protocols import Entry

_CHUNK_LIMIT_BYTES = 1024 * 1024
_PAGE, _PAGE_LIMIT = 200, 1000

F = TypeVar("F", bound=FileCall)


@dataclass(eq=False)
class WorkspaceService(grpc_pb.WorkspaceServiceServicer):
    """Transfers files."""

    scope = "files"

    tool_calls: ToolCalls
    authenticate: Authenticator

    @streaming
    async def ReadFile(self, tenant: Tenant, request: pb.ReadFileRequest) -> AsyncIterator[pb.ReadFileResponse]:
        offset, limit_bytes = request.offset, request.limit_bytes
        arguments = judged(request.path, byte_offset=offset, limit_bytes=limit_bytes)
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue(4)  # as many pieces wait for a slow reader
        download = Download(pieces, STALL_LIMIT_S, offset, limit_bytes or None)

        async def transfer() -> Download:
            try:
                return await self._done(tenant, request.thread, "read_file", arguments, download, past_stored=True)
            finally:
                await pieces.put(None)

        call = asyncio.create_task(transfer())
        first = True
        async with queued(pieces, call) as read:
            async for entry, data in read:
                yield pb.ReadFileResponse(data=data, file=entry_message(entry) if first else None)
                first = False
            await call

    @unary
    async def WriteFile(self, tenant: Tenant, request: AsyncIterator[pb.WriteFileRequest]) -> pb.WriteFileResponse:
        pieces = aiter(request)
        first = await in_time(anext(pieces, None))
        if first is None:
            raise InvalidArgument("the first message names thread and path")

        async def chunks() -> AsyncIterator[bytes]:
            piece: pb.WriteFileRequest | None = first
            while piece is not None:
                yield _checked(piece)
                if piece.end:
                    return
                piece = await in_time(anext(pieces, None))
            # A client that died looks like one that closed its stream: half a file must not replace a whole one.
            raise InvalidArgument("the stream closed before a message with end; the old file is as it was")

        moved = await self._done(tenant, first.thread, "write_file", judged(first.path), Upload(chunks()))
        return pb.WriteFileResponse(size_bytes=moved.moved_bytes)

    @unary
    async def ListFiles(self, tenant: Tenant, request: pb.ListFilesRequest) -> pb.ListFilesResponse:
        """Return a page of a directory, or of a pattern's matches."""
        limit = page_size(request.page_size, usual=_PAGE, limit=_PAGE_LIMIT)
        query = (tenant.name, request.thread, request.path, request.pattern)
        offset, _ = place_of(request.page_token, *query) or (0, "")
        tool = "glob" if request.pattern else "ls"
        arguments = judged(request.path or WORKSPACE, pattern=request.pattern) | {"offset": offset, "limit": limit}
        listing = Listing(request.pattern, offset, limit)
        page = (await self._done(tenant, request.thread, tool, arguments, listing, past_stored=True)).page
        below = str(arguments["path"]) if request.pattern else ""
        shown = page.entries
        return pb.ListFilesResponse(
            files=[entry_message(entry, below=below) for entry in shown],
            # Do not ask forever a daemon that reports more entries and sends none.
            next_page_token=token_of((offset + len(shown), ""), *query) if page.more and shown else "",
            unsearched=page.unsearched,
        )

    @unary
    async def StatFile(self, tenant: Tenant, request: pb.StatFileRequest) -> pb.StatFileResponse:
        arguments = judged(request.path, operation="stat")
        look = await self._done(tenant, request.thread, "ls", arguments, Look(), past_stored=True)
        if look.entry is None:
            raise NotFound(f"{request.path}: it was not looked at")
        return pb.StatFileResponse(file=entry_message(look.entry))

    @unary
    async def RemoveFile(self, tenant: Tenant, request: pb.RemoveFileRequest) -> pb.RemoveFileResponse:
        arguments = judged(request.path, operation="remove", recursive=request.recursive)
        removal = Removal(recursive=request.recursive, missing_ok=request.missing_ok)
        await self._done(tenant, request.thread, "write_file", arguments, removal, past_stored=True)
        return pb.RemoveFileResponse()

    @unary
    async def MakeDirectory(self, tenant: Tenant, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryResponse:
        arguments = judged(request.path, operation="make_directory")
        await self._done(tenant, request.thread, "write_file", arguments, DirectoryMaking())
        return pb.MakeDirectoryResponse()

    async def _done(
        self,
        tenant: Tenant,
        thread: str,
        tool: str,
        arguments: Mapping[str, JsonValue],
        work: F,
        *,
        past_stored: bool = False,
    ) -> F:
        """Run a judged call whose `work` is given, and return that once it is done; raise why it was not.

        A `past_stored` call adds nothing, so it also runs for a tenant at its storage quota.
        """
        work.asked = arguments
        new = NewCall(thread, tool, arguments, executor=work, past_stored=past_stored)
        finished = await self.tool_calls.call(tenant, new)
        raise_refused(finished)
        if work.error is not None:
            raise work.error
        if finished.result.is_error:
            raise InvalidArgument(finished.result.text())
        return work


def _checked(piece: pb.WriteFileRequest) -> bytes:
    if len(piece.data) > _CHUNK_LIMIT_BYTES:
        raise TooLarge(f"data: {_CHUNK_LIMIT_BYTES:,} bytes a message at most; send smaller pieces")
    return piece.data


def entry_message(entry: Entry, *, below: str = "") -> pb.FileEntry:
    """Return an entry under its base name, or under its path relative to the directory `below`."""
    name = posixpath.relpath(entry.name, below) if below else posixpath.basename(entry.name) or "/"
    return message(
        pb.FileEntry,
        entry,
        # Readable: a protobuf string cannot have bytes that are not UTF-8.
        name=name.encode(errors="surrogateescape").decode(errors="backslashreplace"),
        kind=entry.type,
        modified_at=timestamp(entry.modified_ns),
        etag=f"{entry.modified_ns:x}-{entry.size_bytes:x}",
    )


def judged(path: str, **asked: JsonValue) -> dict[str, JsonValue]:
    """Return the arguments of a call on a path: the absolute path, and whatever else was requested.

    They are part of what an approval covers: approval to write a file does not allow removing it.
    """
    try:
        resolved = resolve(path)
    except agent_errors.InvalidPath as error:
        raise InvalidPath(str(error)) from error
    return {"path": resolved, **{name: value for name, value in asked.items() if value}}
