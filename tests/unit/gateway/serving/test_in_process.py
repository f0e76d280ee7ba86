"""Calls of the services in one process: what a client sees is what it sees over a socket."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from airlock.v1 import process_service_pb2, tool_service_pb2
from airlock.wire import Wire, error_of
from gateway.errors import AirlockError, DeadlineExceeded, NotFound, QuotaExceeded, TooLarge, Unauthenticated
from gateway.http.calls import InProcessClient
from gateway.identity.principal import CallCredentials
from gateway.serving.edge import ADMISSION, FirstMessageTimeout, streaming, unary
from gateway.serving.in_process import InProcessServices, Origin
from gateway.tenancy.tenants import Tenant
from gateway.v1 import process_service_pb2_grpc, tool_service_pb2_grpc
from tests.unit.gateway.serving.test_first_message_timeout import TENANT

ORIGIN = Origin("ipv4:192.0.2.7:1234", {"x509_pem_cert": (b"pem",)})
_OF_CALLER: ContextVar[str] = ContextVar("of_caller", default="")


class Service(tool_service_pb2_grpc.ToolServiceServicer, process_service_pb2_grpc.ProcessServiceServicer):
    """A method of each kind, which notes what it was called with."""

    scope = "tool"

    def __init__(self) -> None:
        self.credentials: list[CallCredentials] = []
        self.yielded = 0
        self.ended = asyncio.Event()

    async def authenticate(self, context: Any) -> Tenant:
        self.credentials.append(CallCredentials.by(context))
        if dict(context.invocation_metadata()).get("authorization") != "Bearer alk_good":
            raise Unauthenticated("no such key")
        return TENANT

    @unary
    async def ListTools(self, tenant: Tenant, request: Any) -> Any:  # noqa: N802
        raise QuotaExceeded("too many", 1.5, quota="calls", limit="3")

    @unary
    async def CallTool(self, tenant: Tenant, request: Any) -> Any:  # noqa: N802
        if request.name == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
        if request.name == "none":
            raise NotFound("there is none", rule="r1")
        result = tool_service_pb2.ToolResult(content=request.arguments_json.encode(), rule=_OF_CALLER.get())
        return tool_service_pb2.CallToolResponse(result=result)

    @streaming
    async def StreamToolCall(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        try:
            while True:
                self.yielded += 1
                yield tool_service_pb2.StreamToolCallResponse(output=tool_service_pb2.ToolOutput(data=b"x"))
        finally:
            self.ended.set()

    @streaming
    async def RunProgram(self, tenant: Tenant, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for one in request:
            yield process_service_pb2.RunProgramResponse(stdout=one.stdin)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def services(service: Service) -> InProcessServices:
    made = InProcessServices((FirstMessageTimeout(),))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(service, made)
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(service, made)
    return made


@pytest.fixture
def client(services: InProcessServices) -> InProcessClient:
    return InProcessClient(services.channel(ORIGIN), "alk_good")


async def test_a_call_is_answered_and_the_service_knows_where_it_comes_from(
    client: InProcessClient, service: Service
) -> None:
    assert (await client.call_tool("echo", {"a": 1})).content == '{"a": 1}'
    (credentials,) = service.credentials
    assert credentials.address == ORIGIN.peer
    assert ("authorization", "Bearer alk_good") in credentials.metadata


async def test_without_a_key_the_certificate_of_the_connection_is_there(
    services: InProcessServices, service: Service
) -> None:
    with pytest.raises(Unauthenticated, match="no such key"):
        await InProcessClient(services.channel(ORIGIN), "").call_tool("echo", {})
    assert service.credentials[0].certificate == {"x509_pem_cert": (b"pem",)}


async def test_errors_come_back_as_the_class_that_they_were(client: InProcessClient) -> None:
    with pytest.raises(NotFound, match="there is none") as raised:
        await client.call_tool("none", {})
    assert raised.value.details == {"rule": "r1"}
    with pytest.raises(QuotaExceeded) as quota:
        await client.list_tools()
    assert quota.value.retry_after_s == 1.5


async def test_a_call_ends_at_its_deadline_and_what_it_started_ends_with_it(
    client: InProcessClient, service: Service
) -> None:
    with pytest.raises(DeadlineExceeded):
        await client.call_tool("wait", {}, timeout_s=0.05)
    await asyncio.wait_for(service.ended.wait(), 30)


async def test_cancelling_the_await_ends_the_call(client: InProcessClient, service: Service) -> None:
    call = asyncio.create_task(client.call_tool("wait", {}))
    while not service.credentials:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(service.ended.wait(), 30)


async def test_an_end_that_cancels_its_call_is_cancelled_as_by_grpc(client: InProcessClient, service: Service) -> None:
    request = tool_service_pb2.CallToolRequest(name="wait")
    call = client._method(tool_service_pb2.CallToolRequest)(request, metadata=(("authorization", "Bearer alk_good"),))
    while not service.credentials:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_stream_that_is_not_read_waits_and_one_that_is_dropped_ends(
    client: InProcessClient, service: Service
) -> None:
    stream = _stream(client)
    for _ in range(3):
        assert (await anext(stream)).output.data == b"x"
    for _ in range(50):
        await asyncio.sleep(0)
    assert service.yielded <= 4
    await stream.aclose()
    gc.collect()
    await asyncio.wait_for(service.ended.wait(), 30)


def _stream(client: Wire) -> Any:
    request = tool_service_pb2.StreamToolCallRequest(call=tool_service_pb2.CallToolRequest(name="x"))
    return client._stream(client._method(tool_service_pb2.StreamToolCallRequest), request)


async def test_both_ends_of_a_stream_go_on_beside_each_other(client: InProcessClient) -> None:
    call = client._open(client._method(process_service_pb2.RunProgramRequest))
    for word in (b"a", b"b"):
        await call.write(process_service_pb2.RunProgramRequest(stdin=word))
        assert (await call.read()).stdout == word
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(process_service_pb2.RunProgramRequest(stdin=b"late"))


async def test_requests_are_not_read_before_the_caller_is_known(services: InProcessServices) -> None:
    read = False

    async def requests() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b""

    call = services.call("/gateway.v1.ToolService/CallTool", ORIGIN, (), requests())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert type(error_of(raised.value)) is Unauthenticated
    assert not read


async def test_what_reading_a_request_raises_is_the_error_of_the_call(services: InProcessServices) -> None:
    async def requests() -> AsyncIterator[bytes]:
        raise TooLarge("4 MiB at most")
        yield b""

    key = (("authorization", "Bearer alk_good"),)
    call = services.call("/gateway.v1.ToolService/CallTool", ORIGIN, key, requests())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert type(error_of(raised.value)) is TooLarge


async def test_an_answer_counts_until_its_reader_is_done_with_it(services: InProcessServices) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield tool_service_pb2.CallToolRequest(name="echo", arguments_json='"a"').SerializeToString()

    key = (("authorization", "Bearer alk_good"),)
    before = ADMISSION.snapshot()
    call = services.call("/gateway.v1.ToolService/CallTool", ORIGIN, key, requests())
    answer = await call.read()
    for _ in range(50):
        await asyncio.sleep(0)
    held = ADMISSION.snapshot()
    assert held.answer_bytes - before.answer_bytes == len(answer)
    assert held.at_work == before.at_work + 1
    assert call.tenant == TENANT.name
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    assert ADMISSION.snapshot().answer_bytes == before.answer_bytes


async def test_there_is_no_other_method(services: InProcessServices) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await services.call("/gateway.v1.ToolService/None", ORIGIN)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_knows_nothing_of_its_callers_context(client: InProcessClient) -> None:
    _OF_CALLER.set("of another tenant")
    assert (await client.call_tool("echo", {})).rule == ""


async def test_a_client_may_make_many_calls_at_once(client: InProcessClient) -> None:
    results = await asyncio.gather(*(client.call_tool("echo", {"n": n}) for n in range(64)))
    assert [result.content for result in results] == [f'{{"n": {n}}}' for n in range(64)]


async def test_a_fault_of_a_service_is_an_internal_error_without_its_text(
    client: InProcessClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a secret of the gateway")

    monkeypatch.setattr(service, "authenticate", broken)
    with pytest.raises(AirlockError) as raised, capture_logs() as logged:
        await client.call_tool("echo", {})
    assert "secret" not in str(raised.value)
    assert [one["event"] for one in logged] == ["fault"]
