"""ToolService over gateway.tool_calls.tool_calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agent.cancellation import ended
from agent.filesystem import OnOutput
from agent.messages import ToolResult
from agent.state import VerdictKind
from airlock.v1 import tool_service_pb2 as pb
from gateway.errors import InvalidArgument
from gateway.services.messages import in_time, message
from gateway.serving.edge import Authenticator, deadline_s, streaming, unary
from gateway.serving.request_checks import check
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.caller_tool import PREFIX, CallerTool
from gateway.tool_calls.output_pieces import OutputPieces
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from gateway.v1 import tool_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class ToolService(grpc_pb.ToolServiceServicer):
    """Runs single tool calls."""

    scope = "tool"
    works = ("RunCallerTool", "StreamToolCall")
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
            await ended(call)

    @unary
    async def CancelToolCall(self, tenant: Tenant, request: pb.CancelToolCallRequest) -> pb.CancelToolCallResponse:
        self.requested.cancel(tenant, request.request_id)
        return pb.CancelToolCallResponse()

    @streaming
    async def RunCallerTool(
        self, tenant: Tenant, request: AsyncIterator[pb.RunCallerToolRequest]
    ) -> AsyncIterator[pb.RunCallerToolResponse]:
        """Have the caller run a tool of its own; the call is cancelled when the client disconnects."""
        messages = aiter(request)
        asked = await _opening(messages)
        starts: asyncio.Queue[pb.CallerToolStart | None] = asyncio.Queue()

        async def have_run(call_id: str, arguments: Mapping[str, JsonValue]) -> ToolResult:
            starts.put_nowait(pb.CallerToolStart(call_id=call_id, arguments_json=json.dumps(dict(arguments))))
            return await _caller_result(messages)

        tool = CallerTool(have_run, tenant.policy.document.limits.timeout_s)
        new = NewCall(asked.thread, f"{PREFIX}{asked.name}", asked.arguments_json, executor=tool)
        call = asyncio.create_task(self.tool_calls.call(tenant, new))
        call.add_done_callback(lambda _: starts.put_nowait(None))
        try:
            if (start := await starts.get()) is not None:
                yield pb.RunCallerToolResponse(start=start)
            finished = await call
            if tool.error is not None:
                raise tool.error
            yield pb.RunCallerToolResponse(result=_result(finished, asked.thread))
        finally:
            await ended(call)

    async def _call(
        self, tenant: Tenant, asked: pb.CallToolRequest, on_output: OnOutput | None = None
    ) -> FinishedToolCall:
        new = NewCall(asked.thread, asked.name, asked.arguments_json, on_output)
        return await self.requested.call(tenant, new, asked.request_id, deadline_s=deadline_s())


async def _opening(messages: AsyncIterator[pb.RunCallerToolRequest]) -> pb.CallerToolCall:
    first = await in_time(anext(messages, None), "no message came", "the first must be `call`")
    if first is None or first.WhichOneof("request") != "call":
        raise InvalidArgument("the first message must be `call`; the result follows in the second, after `start`")
    check(first)
    return first.call


async def _caller_result(messages: AsyncIterator[pb.RunCallerToolRequest]) -> ToolResult:
    """Return what came of the caller's tool; it may take long."""
    said = await anext(messages, None)
    if said is None:
        gone = "the caller went away before it sent a result; what its tool did is not known"
        return ToolResult.error(gone, outcome="cancelled")
    if said.WhichOneof("request") != "result":
        raise InvalidArgument("the second message must be `result`; what the tool did is not known")
    check(said)
    failed = said.result.is_error
    return ToolResult(said.result.content, "failed" if failed else "completed", is_error=failed)


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
