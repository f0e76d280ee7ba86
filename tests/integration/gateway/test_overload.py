"""A gateway that is asked for more than it has room for: others are served, refusals say when to come back, and
clients that do not read cost no memory."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from airlock.v1 import process_service_pb2, tool_service_pb2, workspace_service_pb2
from gateway.client import Client
from gateway.v1 import process_service_pb2_grpc, tool_service_pb2_grpc, workspace_service_pb2_grpc
from tests.gateway_process import Home, Served, make_home, served

_MIB = 1024 * 1024
_AT_ONCE, _QUEUE = 2, 4
_CALLS = 60
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = make_home(tmp_path_factory.mktemp("overload"))
    made.configure(
        admission={
            "calls_at_once": _AT_ONCE,
            "calls_at_once_per_tenant": _AT_ONCE,
            "queue_per_tenant": _QUEUE,
            "queue_wait_s": 60.0,  # a queued call is served, on a slow machine too
        }
    )
    return made


@pytest.fixture(scope="module")
def other_key(home: Home) -> str:
    return home.add_tenant("other")


@pytest.fixture(scope="module")
def gateway(home: Home, other_key: str) -> Iterator[Served]:
    assert other_key
    with served(home) as running:
        yield running


def _metadata(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def _rss_bytes(gateway: Served) -> int:
    found = _RSS.search(Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


async def test_one_tenant_in_a_rush_is_refused_with_a_time_and_another_is_served_at_once(
    gateway: Served, home: Home, other_key: str
) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel, Client(gateway.address, other_key) as other:
        stub = tool_service_pb2_grpc.ToolServiceStub(channel)
        await other.call_tool("execute", {"command": "true"})
        # Long enough that what waits in the queue still does when the other tenant comes, on a slow machine too.
        asked = tool_service_pb2.CallToolRequest(name="execute", arguments_json=json.dumps({"command": "sleep 1"}))
        rush = [asyncio.ensure_future(stub.CallTool(asked, metadata=_metadata(home.key))) for _ in range(_CALLS)]
        # The first refusal says that all places and the queue are taken.
        await asyncio.wait(rush, return_when=asyncio.FIRST_EXCEPTION)
        assert (await other.call_tool("execute", {"command": "true"})).exit_code == 0
        served_first = sum(not call.done() for call in rush)
        assert served_first > 0, "the other tenant was served after all of the rush"
        ended = await asyncio.gather(*rush, return_exceptions=True)
    refusals = [error for error in ended if isinstance(error, grpc.aio.AioRpcError)]
    assert len(ended) - len(refusals) >= _AT_ONCE + _QUEUE
    assert len(refusals) >= _CALLS // 2
    for error in refusals:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        assert status is not None
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(info)
        assert status.details[1].Unpack(retry)
        assert info.reason == "OVERLOADED"
        assert 0 < retry.retry_delay.ToMilliseconds() <= 30_000


async def test_a_call_can_be_cancelled_when_nothing_more_is_let_in(gateway: Served, home: Home) -> None:
    metadata = _metadata(home.key)
    arguments = json.dumps({"command": "sleep 600"})
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = tool_service_pb2_grpc.ToolServiceStub(channel)
        calls: dict[str, asyncio.Task[grpc.StatusCode]] = {}
        for name in map(str, range(_AT_ONCE + 1 + _QUEUE + 1)):
            asked = tool_service_pb2.CallToolRequest(name="execute", arguments_json=arguments, request_id=name)
            calls[name] = asyncio.create_task(stub.CallTool(asked, metadata=metadata).code())
        over, _ = await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        assert {call.result() for call in over} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        while waiting := [name for name, call in calls.items() if not call.done()]:
            for name in waiting:
                cancel = tool_service_pb2.CancelToolCallRequest(request_id=name)
                code = await stub.CancelToolCall(cancel, metadata=metadata).code()
                # One that waits for a place has not begun, and one that is over is gone.
                assert code in {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
            await asyncio.wait([calls[name] for name in waiting], timeout=0.1)
        codes = [call.result() for call in calls.values()]
    assert codes.count(grpc.StatusCode.CANCELLED) >= _AT_ONCE
    assert set(codes) == {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.mark.parametrize("what", ["a tool call", "a file", "a program", "a process"])
async def test_a_client_that_stops_reading_costs_the_gateway_no_memory(gateway: Served, home: Home, what: str) -> None:
    """What is not read stays in the sandbox: the bound is for all of them together, and far below what there is."""
    async with Client(gateway.address, home.key) as airlock:
        made = "head -c 200000000 /dev/zero > /workspace/large; echo > /workspace/small"
        assert (await airlock.call_tool("execute", {"command": made})).exit_code == 0
        async with asyncio.timeout(60), grpc.aio.insecure_channel(gateway.address) as channel:
            streams = [await _opened(channel, _metadata(home.key), what) for _ in range(2)]
            firsts = [await stream.read() for stream in streams]
            assert all(firsts)
            before = _rss_bytes(gateway)
            # Nothing is read meanwhile; the others go on, and what could pile up does.
            for _ in range(20):
                assert await airlock.read_file("default", "/workspace/small") == b"\n"
            grown = _rss_bytes(gateway) - before
            for stream in streams:
                stream.cancel()
        assert grown < 32 * _MIB, f"{grown / _MIB:.0f} MiB"


async def _opened(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...], what: str) -> grpc.aio.Call:
    """Open a stream that has some 200 MB to say (a tool call's output is cut at its limit)."""
    if what == "a file":
        files = workspace_service_pb2_grpc.WorkspaceServiceStub(channel)
        return files.ReadFile(workspace_service_pb2.ReadFileRequest(path="/workspace/large"), metadata=metadata)
    if what == "a tool call":
        tools = tool_service_pb2_grpc.ToolServiceStub(channel)
        arguments = json.dumps({"command": "cat /workspace/large"})
        call = tool_service_pb2.CallToolRequest(name="execute", arguments_json=arguments)
        return tools.StreamToolCall(tool_service_pb2.StreamToolCallRequest(call=call), metadata=metadata)
    processes = process_service_pb2_grpc.ProcessServiceStub(channel)
    program = process_service_pb2.Program(argv=["cat", "/workspace/large"])
    if what == "a program":

        async def asked() -> AsyncIterator[process_service_pb2.RunProgramRequest]:
            yield process_service_pb2.RunProgramRequest(run=process_service_pb2.RunProgram(program=program))

        return processes.RunProgram(asked(), metadata=metadata)
    started = await processes.StartProcess(process_service_pb2.StartProcessRequest(program=program), metadata=metadata)
    return processes.ReadProcess(
        process_service_pb2.ReadProcessRequest(id=started.process.id, follow=True), metadata=metadata
    )
