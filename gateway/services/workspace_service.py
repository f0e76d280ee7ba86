"""WorkspaceService: files in and out of a thread's sandbox, byte for byte.

Nothing is redacted here: the caller is the tenant's own service, not a model, and a file must come back as it went in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from agent import errors as agent_errors
from agent.paths import resolve
from gateway.calls.file_transfer import Download, Upload
from gateway.calls.thread_sandbox import ThreadSandbox
from gateway.calls.tool_calls import FinishedToolCall, ToolCalls
from gateway.errors import DeadlineExceeded, InvalidArgument, InvalidPath, PermissionDenied, TooLarge
from gateway.serving.edge import Authenticator, Context, streaming, unary
from gateway.tenants import Tenant
from gateway.v1 import workspace_service_pb2 as pb
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb

_CHUNKS_IN_FLIGHT = 4
_CHUNK_LIMIT_BYTES = 1024 * 1024
STALL_LIMIT_S = 60.0
T = TypeVar("T")


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
        arguments = _arguments(request.path)
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(_CHUNKS_IN_FLIGHT)
        moved: list[Download] = []

        def executor(sandbox: ThreadSandbox) -> Download:
            moved.append(Download(sandbox, chunks, STALL_LIMIT_S))
            return moved[0]

        async def transfer() -> FinishedToolCall:
            try:
                return await self._tool_calls.call(tenant, request.thread, "read_file", arguments, executor=executor)
            finally:
                await chunks.put(None)

        call = asyncio.create_task(transfer())
        try:
            while (chunk := await chunks.get()) is not None:
                yield pb.ReadFileResponse(data=chunk)
            _raise_failure(await call, moved)
        finally:
            call.cancel()
            while not chunks.empty():
                chunks.get_nowait()
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

        moved: list[Upload] = []

        def executor(sandbox: ThreadSandbox) -> Upload:
            moved.append(Upload(sandbox, chunks()))
            return moved[0]

        finished = await self._tool_calls.call(
            tenant, first.thread, "write_file", _arguments(first.path), executor=executor
        )
        _raise_failure(finished, moved)
        return pb.WriteFileResponse(size_bytes=moved[0].size_bytes)


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


def _arguments(path: str) -> str:
    try:
        return json.dumps({"path": resolve(path)})
    except agent_errors.InvalidPath as error:
        raise InvalidPath(str(error)) from error


def _raise_failure(finished: FinishedToolCall, moved: list[Upload] | list[Download]) -> None:
    finished.raise_waiting()
    execution = finished.execution
    if execution.blocked and execution.verdict is not None:
        raise PermissionDenied(
            f"{execution.verdict.reason} (rule {execution.verdict.rule})", rule=execution.verdict.rule
        )
    if moved and moved[0].error is not None:
        raise moved[0].error
    if finished.result.is_error:
        raise InvalidArgument(finished.result.text())
