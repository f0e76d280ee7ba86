"""WorkspaceService: files in and out of a thread's sandbox, byte for byte, and what is there.

Nothing is redacted here: the caller is the tenant's own service, not a model, and a file must come back as it went in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

from pydantic import JsonValue

from agent.tools.paths import WORKSPACE
from gateway.errors import DeadlineExceeded, InvalidArgument, NotFound, PermissionDenied, TooLarge
from gateway.identity.call_credentials import Context
from gateway.services.workspace_messages import entry_message, judged
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.support.paging import page_size, place_of, token_of
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.file_call import FileCall
from gateway.tool_calls.file_transfer import Download, Piece, Upload
from gateway.tool_calls.file_tree import DirectoryMaking, Listing, Look, Removal
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import FinishedToolCall, ToolCalls
from gateway.v1 import workspace_service_pb2 as pb
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb

_CHUNKS_IN_FLIGHT = 4
_CHUNK_LIMIT_BYTES = 1024 * 1024
_PAGE, _PAGE_LIMIT = 200, 1000
STALL_LIMIT_S = 60.0
T = TypeVar("T")
F = TypeVar("F", bound=FileCall)


class WorkspaceService(grpc_pb.WorkspaceServiceServicer):
    """Moves files."""

    scope = "files"

    def __init__(self, tool_calls: ToolCalls, authenticate: Authenticator) -> None:
        self._tool_calls = tool_calls
        self.authenticate = authenticate

    @streaming
    async def ReadFile(  # noqa: N802
        self, tenant: Tenant, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        """Stream a file."""
        del context
        offset, limit_bytes = request.offset, request.limit_bytes
        arguments = judged(request.path, byte_offset=offset, limit_bytes=limit_bytes)
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue(_CHUNKS_IN_FLIGHT)

        def download(sandbox: ThreadSandbox) -> Download:
            return Download(sandbox, pieces, STALL_LIMIT_S, offset=offset, limit_bytes=limit_bytes or None)

        async def transfer() -> Download:
            try:
                return await self._done(tenant, request.thread, "read_file", arguments, download, past_stored=True)
            finally:
                await pieces.put(None)

        call = asyncio.create_task(transfer())
        try:
            told = False
            while (piece := await pieces.get()) is not None:
                entry, data = piece
                yield pb.ReadFileResponse(data=data, file=None if told else entry_message(entry))
                told = True
            await call
        finally:
            call.cancel()
            while not pieces.empty():
                pieces.get_nowait()
            await asyncio.gather(call, return_exceptions=True)

    @unary
    async def WriteFile(  # noqa: N802
        self, tenant: Tenant, request: AsyncIterator[pb.WriteFileRequest], context: Context
    ) -> pb.WriteFileResponse:
        """Replace a file atomically."""
        del context
        pieces = aiter(request)
        first = await _in_time(anext(pieces, None))
        if first is None:
            raise InvalidArgument("the first message names thread and path")

        async def chunks() -> AsyncIterator[bytes]:
            piece = first
            yield _checked(piece)
            while not piece.end:
                following = await _in_time(anext(pieces, None))
                if following is None:
                    # A client that died looks like one that closed its half: half a file must not replace a whole one.
                    raise InvalidArgument("the stream closed before a message with end; the old file is as it was")
                piece = following
                yield _checked(piece)

        arguments = judged(first.path)
        moved = await self._done(
            tenant, first.thread, "write_file", arguments, lambda sandbox: Upload(sandbox, chunks())
        )
        return pb.WriteFileResponse(size_bytes=moved.size_bytes)

    @unary
    async def ListFiles(  # noqa: N802
        self, tenant: Tenant, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        """Return a page of a directory, or of what a pattern matches."""
        del context
        limit = page_size(request.page_size, usual=_PAGE, limit=_PAGE_LIMIT)
        query = (tenant.name, request.thread, request.path, request.pattern)
        offset, _ = place_of(request.page_token, *query) or (0, "")
        tool = "glob" if request.pattern else "ls"
        arguments = judged(request.path or WORKSPACE, pattern=request.pattern) | {"offset": offset, "limit": limit}

        def listing(sandbox: ThreadSandbox) -> Listing:
            return Listing(sandbox, request.pattern, offset=offset, limit=limit)

        page = (await self._done(tenant, request.thread, tool, arguments, listing, past_stored=True)).page
        below = str(arguments["path"]) if request.pattern else ""
        shown = page.entries
        return pb.ListFilesResponse(
            files=[entry_message(entry, below=below) for entry in shown],
            # A daemon that says there is more and sends nothing is not asked for ever.
            next_page_token=token_of((offset + len(shown), ""), *query) if page.more and shown else "",
            unsearched=page.unsearched,
        )

    @unary
    async def StatFile(  # noqa: N802
        self, tenant: Tenant, request: pb.StatFileRequest, context: Context
    ) -> pb.StatFileResponse:
        """Describe a path."""
        del context
        arguments = judged(request.path, operation="stat")
        look = await self._done(tenant, request.thread, "ls", arguments, Look, past_stored=True)
        if look.entry is None:
            raise NotFound(f"{request.path}: it was not looked at")
        return pb.StatFileResponse(file=entry_message(look.entry))

    @unary
    async def RemoveFile(  # noqa: N802
        self, tenant: Tenant, request: pb.RemoveFileRequest, context: Context
    ) -> pb.RemoveFileResponse:
        """Remove a file, a link or a directory."""
        del context
        arguments = judged(request.path, operation="remove", recursive=request.recursive)

        def removal(sandbox: ThreadSandbox) -> Removal:
            return Removal(sandbox, recursive=request.recursive, missing_ok=request.missing_ok)

        await self._done(tenant, request.thread, "write_file", arguments, removal, past_stored=True)
        return pb.RemoveFileResponse()

    @unary
    async def MakeDirectory(  # noqa: N802
        self, tenant: Tenant, request: pb.MakeDirectoryRequest, context: Context
    ) -> pb.MakeDirectoryResponse:
        """Make a directory and its parents."""
        del context
        arguments = judged(request.path, operation="make_directory")
        await self._done(tenant, request.thread, "write_file", arguments, DirectoryMaking)
        return pb.MakeDirectoryResponse()

    async def _done(
        self,
        tenant: Tenant,
        thread: str,
        tool: str,
        arguments: Mapping[str, JsonValue],
        make: Callable[[ThreadSandbox], F],
        *,
        past_stored: bool = False,
    ) -> F:
        """Send a call down the way and return what was made for it, once it did its work; raise why it did not.

        One `past_stored` adds nothing, and so is done also for a tenant of which as much is stored as may be.
        """
        made: list[F] = []

        def executor(sandbox: ThreadSandbox) -> F:
            made.append(make(sandbox))
            made[0].asked = arguments
            return made[0]

        finished = await self._tool_calls.call(
            tenant, thread, tool, arguments, executor=executor, past_stored=past_stored
        )
        _raise_failure(finished, made[0])
        return made[0]


def _checked(piece: pb.WriteFileRequest) -> bytes:
    if len(piece.data) > _CHUNK_LIMIT_BYTES:
        raise TooLarge(f"data: {_CHUNK_LIMIT_BYTES:,} bytes a message at most; send smaller pieces")
    return piece.data


async def _in_time(piece: Awaitable[T]) -> T:
    """Return the next piece; a peer that stalls must not hold a sandbox."""
    try:
        async with asyncio.timeout(STALL_LIMIT_S):
            return await piece
    except TimeoutError:
        raise DeadlineExceeded(f"nothing moved for {STALL_LIMIT_S:g} s; start the transfer again") from None


def _raise_failure(finished: FinishedToolCall, call: FileCall) -> None:
    finished.raise_waiting()
    execution = finished.execution
    if execution.blocked and execution.verdict is not None:
        raise PermissionDenied(
            f"{execution.verdict.reason} (rule {execution.verdict.rule})", rule=execution.verdict.rule
        )
    if call.error is not None:
        raise call.error
    if finished.result.is_error:
        raise InvalidArgument(finished.result.text())
