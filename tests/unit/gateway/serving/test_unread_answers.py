"""A peer that never takes an answer holds its place for a while only, and what it holds is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2_grpc

from airlock.v1 import tool_service_pb2
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.serving.edge import ADMISSION, FirstMessageTimeout, streaming, unary
from gateway.serving.health import BoundedHealth
from gateway.serving.incoming import SendTimeouts
from gateway.serving.prefetching_server import follow_rpcs
from gateway.tenancy.tenants import Tenant
from gateway.v1 import tool_service_pb2_grpc
from tests.raw_http2 import raw_connection

TENANT = Tenant("t", Policy(PolicyDocument(version=1, rules=())), ModelSettings(), {})
_CONTENT = b"x" * 65_536
_CALLS = 8
_CALL_TOOL = "/gateway.v1.ToolService/CallTool"
_STREAM = "/gateway.v1.ToolService/StreamToolCall"
_CALL = tool_service_pb2.CallToolRequest(name="execute", arguments_json="{}")
_REQUESTS = {
    _CALL_TOOL: _CALL.SerializeToString(),
    _STREAM: tool_service_pb2.StreamToolCallRequest(call=_CALL).SerializeToString(),
}
_CHECK = "/grpc.health.v1.Health/Check"
_WATCH = "/grpc.health.v1.Health/Watch"


class Large(tool_service_pb2_grpc.ToolServiceServicer):
    """Answers with much."""

    scope = "tool"

    def __init__(self) -> None:
        self.streams = 0

    async def authenticate(self, context: Any) -> Tenant:
        return TENANT

    @unary
    async def CallTool(self, tenant: Tenant, request: Any) -> Any:  # noqa: N802
        return tool_service_pb2.CallToolResponse(result=tool_service_pb2.ToolResult(content=_CONTENT))

    @streaming
    async def StreamToolCall(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.streams += 1
        yield tool_service_pb2.StreamToolCallResponse(result=tool_service_pb2.ToolResult(content=_CONTENT))


@contextlib.asynccontextmanager
async def _served(send_s: float) -> AsyncIterator[str]:
    follow_rpcs(asyncio.get_running_loop(), linger_s=0.01)
    server = grpc.aio.server(interceptors=(FirstMessageTimeout(sending=SendTimeouts(send_s)),))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(Large(), server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(BoundedHealth(send_s=send_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("method", [_CALL_TOOL, _CHECK, _WATCH])
async def test_an_answer_that_is_not_taken_ends_its_call(method: str) -> None:
    async with _served(send_s=0.05) as address, raw_connection(address) as peer, asyncio.timeout(30):
        for _ in range(_CALLS):
            peer.call(method, _REQUESTS.get(method, b""))
        # The core resets their streams. grpc.aio itself refers to one or two until the next call comes.
        await peer.wait_ended(_CALLS - 2)
    await _until(lambda: ADMISSION.snapshot().answer_bytes == 0)


async def test_a_call_holds_its_place_and_the_bytes_of_its_answer_until_the_peer_has_it() -> None:
    async with _served(send_s=600) as address:
        async with raw_connection(address) as peer:
            for _ in range(_CALLS):
                peer.call(_CALL_TOOL, _REQUESTS[_CALL_TOOL])
            await _until(lambda: ADMISSION.snapshot().answer_bytes > _CALLS * len(_CONTENT))
            assert ADMISSION.snapshot().at_work == _CALLS
        await _until(lambda: ADMISSION.snapshot().at_work == 0)
        assert ADMISSION.snapshot().answer_bytes == 0
        async with grpc.aio.insecure_channel(address) as channel:
            stub = tool_service_pb2_grpc.ToolServiceStub(channel)
            assert (await stub.CallTool(_CALL)).result.content == _CONTENT
        await _until(lambda: ADMISSION.snapshot().at_work == 0)


async def test_a_stream_that_is_not_read_is_counted() -> None:
    async with _served(send_s=0.05) as address:
        async with raw_connection(address) as peer:
            peer.call(_STREAM, _REQUESTS[_STREAM])
            await _until(lambda: ADMISSION.snapshot().answer_bytes > len(_CONTENT))
            assert ADMISSION.snapshot().streams == 1
        await _until(lambda: ADMISSION.snapshot().streams == 0)
        assert ADMISSION.snapshot().answer_bytes == 0


async def test_a_watcher_that_reads_nothing_keeps_no_status_from_changing() -> None:
    healthy = BoundedHealth()
    server = grpc.aio.server(interceptors=(FirstMessageTimeout(),))
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with raw_connection(f"127.0.0.1:{port}") as peer, asyncio.timeout(30):
        peer.call(_WATCH)
        await peer.wait_answered(1)
        await healthy.set("", 2)
        await healthy.enter_graceful_shutdown()
    await server.stop(0)
