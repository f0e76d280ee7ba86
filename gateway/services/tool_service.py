"""ToolService over gateway.tool_calls.tool_calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from agent.decisions import VerdictKind
from agent.filesystem import OnOutput
from agent.messages import Evicted
from gateway.identity.call_credentials import Context
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.output_pieces import OutputPieces
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.tool_calls import FinishedToolCall, ToolCalls
from gateway.v1 import tool_service_pb2 as pb
from gateway.v1 import tool_service_pb2_grpc as grpc_pb


class ToolService(grpc_pb.ToolServiceServicer):
    """Calls tools one by one."""

    scope = "tool"
    works = ("StreamToolCall",)
    frees = ("CancelToolCall",)

    def __init__(self, tool_calls: ToolCalls, authenticate: Authenticator, requested: RequestedCalls) -> None:
        self._tool_calls = tool_calls
        self._requested = requested
        self.authenticate = authenticate

    @unary
    async def ListTools(  # noqa: N802
        self, tenant: Tenant, request: pb.ListToolsRequest, context: Context
    ) -> pb.ListToolsResponse:
        """List the tools."""
        del request, context
        return pb.ListToolsResponse(
            tools=[
                pb.Tool(name=spec.name, description=spec.description, parameters_json=json.dumps(spec.parameters))
                for spec in self._tool_calls.specs(tenant)
            ]
        )

    @unary
    async def CallTool(  # noqa: N802
        self, tenant: Tenant, request: pb.CallToolRequest, context: Context
    ) -> pb.CallToolResponse:
        """Run one tool call."""
        finished = await self._call(tenant, request, context)
        return pb.CallToolResponse(result=_result(finished, request.thread))

    @streaming
    async def StreamToolCall(  # noqa: N802
        self, tenant: Tenant, request: pb.StreamToolCallRequest, context: Context
    ) -> AsyncIterator[pb.StreamToolCallResponse]:
        """Run one tool call and stream its output; a client that goes away cancels it."""
        asked = request.call
        # Bounded by what a result may hold: past the eviction limit no output is streamed.
        pieces = OutputPieces()
        call = asyncio.create_task(self._call(tenant, asked, context, on_output=pieces.put))
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
    async def CancelToolCall(  # noqa: N802
        self, tenant: Tenant, request: pb.CancelToolCallRequest, context: Context
    ) -> pb.CancelToolCallResponse:
        """End a call that was made with a request id."""
        del context
        self._requested.cancel(tenant, request.request_id)
        return pb.CancelToolCallResponse()

    async def _call(
        self, tenant: Tenant, asked: pb.CallToolRequest, context: Context, on_output: OnOutput | None = None
    ) -> FinishedToolCall:
        left_s: float | None = context.time_remaining()
        return await self._requested.call(
            tenant,
            asked.thread,
            asked.name,
            asked.arguments_json,
            request_id=asked.request_id,
            on_output=on_output,
            deadline_s=None if left_s is None else asyncio.get_running_loop().time() + left_s,
        )


def _result(finished: FinishedToolCall, thread: str) -> pb.ToolResult:
    execution, result = finished.execution, finished.result
    verdict = execution.verdict
    return pb.ToolResult(
        call_id=execution.call.id,
        thread=thread or finished.thread,
        verdict=_verdict(finished),
        rule=verdict.rule if verdict else "",
        reason=verdict.reason if verdict else "",
        outcome=result.outcome,
        exit_code=result.exit_code,
        content=result.content,
        is_error=result.is_error,
        evicted=None if result.evicted is None else _evicted(result.evicted),
        duration_ms=finished.duration_s * 1000,
        stdout=result.stdout,
        stderr=result.stderr,
        note=result.note,
        approval_id=execution.approval_id,
        policy_version=verdict.policy_version if verdict else "",
        edited_arguments_json=finished.edited_arguments,
    )


def _verdict(finished: FinishedToolCall) -> pb.Verdict:
    if finished.execution.blocked:
        return pb.VERDICT_DENY
    verdict = finished.execution.verdict
    return pb.VERDICT_ASK if verdict and verdict.kind is VerdictKind.ASK else pb.VERDICT_ALLOW


def _evicted(evicted: Evicted) -> pb.Evicted:
    return pb.Evicted(**evicted.model_dump())
