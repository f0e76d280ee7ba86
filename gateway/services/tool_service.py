"""ToolService over gateway.tool_calls.tool_calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agent.filesystem import OnOutput
from agent.state import VerdictKind
from airlock.v1 import tool_service_pb2 as pb
from gateway.services.messages import message
from gateway.serving.edge import Authenticator, deadline_s, streaming, unary
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.output_pieces import OutputPieces
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from gateway.v1 import tool_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class ToolService(grpc_pb.ToolServiceServicer):
    """Runs single tool calls."""

    scope = "tool"
    works = ("StreamToolCall",)
    frees = ("CancelToolCall",)

    tool_calls: ToolCalls
    authenticate: Authenticator
    requested: RequestedCalls

    @unary
    async def ListTools(self, tenant: Tenant, request: pb.ListToolsRequest) -> pb.ListToolsResponse:
        specs = await self.tool_calls.specs(tenant)
        tools = [message(pb.Tool, spec, parameters_json=json.dumps(spec.parameters)) for spec in specs]
        return pb.ListToolsResponse(tools=tools)

    @unary
    async def CallTool(self, tenant: Tenant, request: pb.CallToolRequest) -> pb.CallToolResponse:
        finished = await self._call(tenant, request)
        return pb.CallToolResponse(result=_result(finished, request.thread))

    @streaming
    async def StreamToolCall(
        self, tenant: Tenant, request: pb.StreamToolCallRequest
    ) -> AsyncIterator[pb.StreamToolCallResponse]:
        """Run one tool call and stream its output; it is cancelled when the client disconnects."""
        asked = request.call
        # Bounded by the size of a result: past the eviction limit no output is streamed.
        pieces = OutputPieces()
        call = asyncio.create_task(self._call(tenant, asked, on_output=pieces.put))
        call.add_done_callback(lambda _: pieces.end())
        try:
            while (piece := await pieces.take()) is not None:
                stream, data = piece
                yield pb.StreamToolCallResponse(output=pb.ToolOutput(stderr=stream == "stderr", data=data))
            yield pb.StreamToolCallResponse(result=_result(await call, asked.thread))
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    @unary
    async def CancelToolCall(self, tenant: Tenant, request: pb.CancelToolCallRequest) -> pb.CancelToolCallResponse:
        self.requested.cancel(tenant, request.request_id)
        return pb.CancelToolCallResponse()

    async def _call(
        self, tenant: Tenant, asked: pb.CallToolRequest, on_output: OnOutput | None = None
    ) -> FinishedToolCall:
        new = NewCall(asked.thread, asked.name, asked.arguments_json, on_output)
        return await self.requested.call(tenant, new, asked.request_id, deadline_s=deadline_s())


def _result(finished: FinishedToolCall, thread: str) -> pb.ToolResult:
    execution, result = finished.execution, finished.result
    verdict = execution.verdict
    return message(
        pb.ToolResult,
        result,
        call_id=execution.call.id,
        thread=thread or finished.thread,
        verdict=_verdict(finished),
        rule=verdict.rule if verdict else "",
        reason=verdict.reason if verdict else "",
        policy_version=verdict.policy_version if verdict else "",
        attachments=[pb.ResultFile(**one.model_dump()) for one in result.attachments],
        structured_json="" if result.structured is None else json.dumps(result.structured),
        evicted=None if result.evicted is None else pb.Evicted(**result.evicted.model_dump()),
        duration_ms=finished.duration_s * 1000,
        approval_id=execution.approval_id,
        edited_arguments_json=finished.edited_arguments,
    )


def _verdict(finished: FinishedToolCall) -> pb.Verdict:
    if finished.execution.blocked:
        return pb.VERDICT_DENY
    verdict = finished.execution.verdict
    return pb.VERDICT_ASK if verdict and verdict.kind is VerdictKind.ASK else pb.VERDICT_ALLOW
