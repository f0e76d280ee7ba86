"""ThreadService over gateway.runs.threads."""

from __future__ import annotations

import json

from gateway.identity.call_credentials import Context
from gateway.runs.threads import Said, Threads, WholeThread
from gateway.services.timestamps import timestamp
from gateway.serving.edge import Authenticator, unary
from gateway.storage.thread_store import ThreadRow
from gateway.tenancy.tenants import Tenant
from gateway.v1 import thread_service_pb2 as pb
from gateway.v1 import thread_service_pb2_grpc as grpc_pb


class ThreadService(grpc_pb.ThreadServiceServicer):
    """Looks after threads."""

    scope = "run"

    def __init__(self, threads: Threads, authenticate: Authenticator) -> None:
        self._threads = threads
        self.authenticate = authenticate

    @unary
    async def ListThreads(  # noqa: N802
        self, tenant: Tenant, request: pb.ListThreadsRequest, context: Context
    ) -> pb.ListThreadsResponse:
        """List threads, a page at a time."""
        del context
        found, token = await self._threads.page(
            tenant, prefix=request.name_prefix, size=request.page_size, token=request.page_token
        )
        return pb.ListThreadsResponse(threads=[_thread(row) for row in found], next_page_token=token)

    @unary
    async def GetThread(  # noqa: N802
        self, tenant: Tenant, request: pb.GetThreadRequest, context: Context
    ) -> pb.GetThreadResponse:
        """Return a thread."""
        del context
        return pb.GetThreadResponse(thread=_whole(await self._threads.get(tenant, request.thread)))

    @unary
    async def ListMessages(  # noqa: N802
        self, tenant: Tenant, request: pb.ListMessagesRequest, context: Context
    ) -> pb.ListMessagesResponse:
        """List what was said, a page at a time."""
        del context
        found, token = await self._threads.messages(
            tenant, request.thread, size=request.page_size, token=request.page_token
        )
        return pb.ListMessagesResponse(messages=[_message(one) for one in found], next_page_token=token)

    @unary
    async def SetThreadMetadata(  # noqa: N802
        self, tenant: Tenant, request: pb.SetThreadMetadataRequest, context: Context
    ) -> pb.SetThreadMetadataResponse:
        """Set and remove entries of a thread's metadata."""
        del context
        thread = await self._threads.set_metadata(tenant, request.thread, dict(request.set), list(request.remove))
        return pb.SetThreadMetadataResponse(thread=_whole(thread))

    @unary
    async def DeleteThread(  # noqa: N802
        self, tenant: Tenant, request: pb.DeleteThreadRequest, context: Context
    ) -> pb.DeleteThreadResponse:
        """Remove a thread for good."""
        del context
        return pb.DeleteThreadResponse(removed=dict(await self._threads.delete(tenant, request.thread)))


def _thread(row: ThreadRow) -> pb.Thread:
    return pb.Thread(name=row.name, created_at=timestamp(row.created_us), run_id=row.run_id or "")


def _whole(thread: WholeThread) -> pb.Thread:
    whole = _thread(thread.row)
    whole.metadata.update(thread.metadata)
    whole.messages = thread.messages
    return whole


def _message(said: Said) -> pb.ThreadMessage:
    message = said.message
    calls = [
        {
            "id": call.id,
            "name": call.name,
            "arguments": call.raw_arguments if call.arguments is None else call.arguments,
        }
        for call in message.tool_calls
    ]
    return pb.ThreadMessage(
        position=said.position,
        role=message.role,
        content=message.content,
        tool_calls_json=json.dumps(calls) if calls else "",
        tool_call_id=message.tool_call_id or "",
        run_id=said.run_id,
    )
