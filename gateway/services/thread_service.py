"""ThreadService over gateway.runs.threads."""

import json
from dataclasses import dataclass

from airlock.v1 import thread_service_pb2 as pb
from gateway.runs.threads import Said, Threads, WholeThread
from gateway.services.messages import message, paging
from gateway.serving.edge import Authenticator, unary
from gateway.tenancy.tenants import Tenant
from gateway.v1 import thread_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class ThreadService(grpc_pb.ThreadServiceServicer):
    """Manages threads."""

    scope = "run"

    threads: Threads
    authenticate: Authenticator

    @unary
    async def ListThreads(self, tenant: Tenant, request: pb.ListThreadsRequest) -> pb.ListThreadsResponse:
        found, token = await self.threads.page(tenant, prefix=request.name_prefix, **paging(request))
        return pb.ListThreadsResponse(threads=[message(pb.Thread, row) for row in found], next_page_token=token)

    @unary
    async def GetThread(self, tenant: Tenant, request: pb.GetThreadRequest) -> pb.GetThreadResponse:
        return pb.GetThreadResponse(thread=_whole(await self.threads.get(tenant, request.thread)))

    @unary
    async def ListMessages(self, tenant: Tenant, request: pb.ListMessagesRequest) -> pb.ListMessagesResponse:
        found, token = await self.threads.messages(tenant, request.thread, **paging(request))
        return pb.ListMessagesResponse(messages=[_message(one) for one in found], next_page_token=token)

    @unary
    async def SetThreadMetadata(
        self, tenant: Tenant, request: pb.SetThreadMetadataRequest
    ) -> pb.SetThreadMetadataResponse:
        thread = await self.threads.set_metadata(tenant, request.thread, dict(request.set), list(request.remove))
        return pb.SetThreadMetadataResponse(thread=_whole(thread))

    @unary
    async def DeleteThread(self, tenant: Tenant, request: pb.DeleteThreadRequest) -> pb.DeleteThreadResponse:
        return pb.DeleteThreadResponse(removed=dict(await self.threads.delete(tenant, request.thread)))


def _whole(thread: WholeThread) -> pb.Thread:
    return message(pb.Thread, thread.row, metadata=thread.metadata, messages=thread.messages)


def _message(said: Said) -> pb.ThreadMessage:
    calls = []
    for call in said.message.tool_calls:
        arguments = call.raw_arguments if call.arguments is None else call.arguments
        calls.append({"id": call.id, "name": call.name, "arguments": arguments})
    return message(
        pb.ThreadMessage,
        said.message,
        position=said.position,
        run_id=said.run_id,
        tool_calls_json=json.dumps(calls) if calls else "",
        attachments=[message(pb.Attachment, one) for one in said.message.attachments],
    )
