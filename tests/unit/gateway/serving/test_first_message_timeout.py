"""Requests that are no requests: each is refused with a reason, and none is a fault of the gateway."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from airlock.v1 import process_service_pb2, tool_service_pb2
from airlock.wire import error_of
from gateway.client import Client, InvalidArgument, TooLarge
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.serving.edge import FirstMessageTimeout, streaming, unary
from gateway.serving.listening import server_options
from gateway.tenancy.tenants import Tenant
from gateway.v1 import process_service_pb2_grpc, tool_service_pb2_grpc

TENANT = Tenant("t", Policy(PolicyDocument(version=1, rules=())), ModelSettings(), {})
CORRUPT = b"\xff\xff"


class Small(tool_service_pb2_grpc.ToolServiceServicer, process_service_pb2_grpc.ProcessServiceServicer):
    """One method of each kind."""

    scope = "tool"

    async def authenticate(self, context: Any) -> Tenant:
        return TENANT

    @unary
    async def CallTool(self, tenant: Tenant, request: Any) -> Any:  # noqa: N802
        return tool_service_pb2.CallToolResponse()

    @streaming
    async def StreamToolCall(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield tool_service_pb2.StreamToolCallResponse()

    @streaming
    async def RunProgram(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for _ in request:
            yield process_service_pb2.RunProgramResponse()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    server = grpc.aio.server(interceptors=(FirstMessageTimeout(),), options=server_options(shared=False))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(Small(), server)  # type: ignore[no-untyped-call]
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(Small(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x") as made:
        yield made
    await server.stop(None)


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_what_cannot_be_decoded_is_an_invalid_argument_and_no_fault(
    client: Client, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    channel: Any = client._channel
    calls = (
        channel.unary_stream("/gateway.v1.ToolService/CallTool")(CORRUPT),
        channel.unary_stream("/gateway.v1.ToolService/StreamToolCall")(CORRUPT),
        channel.stream_stream("/gateway.v1.ProcessService/RunProgram")(_pieces(b"", CORRUPT)),
    )
    with caplog.at_level(logging.DEBUG):
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                _ = [answer async for answer in call]
            error = error_of(raised.value)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert type(error) is InvalidArgument
            # With the reason of an ErrorInfo the client says nothing of the code.
            assert str(error).startswith("the request cannot be decoded: ")
    assert "Traceback" not in caplog.text
    written = capsys.readouterr()
    assert "fault" not in written.out + written.err


async def test_a_call_without_a_request_is_an_invalid_argument(client: Client) -> None:
    channel: Any = client._channel
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.stream_unary("/gateway.v1.ToolService/CallTool")(_pieces())
    assert str(error_of(raised.value)) == "the call has no request"


async def test_a_request_that_is_too_large_names_the_limit(client: Client) -> None:
    with pytest.raises(TooLarge, match=r"the request has 5,000,0.. bytes, and a message 4,194,304 at most") as raised:
        await client.call_tool("write_file", {"path": "a", "content": "x" * 5_000_000})
    assert raised.value.details["limit_bytes"] == "4194304"
