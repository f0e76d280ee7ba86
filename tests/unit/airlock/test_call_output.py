"""Output of a tool call as it arrives: given to functions and to coroutine functions, whole and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from grpc_status import rpc_status

from airlock.v1 import tool_service_pb2 as pb
from airlock.wire import OnOutput
from gateway.client import Client, Retry, Unavailable
from gateway.serving.edge import status_of
from gateway.v1 import tool_service_pb2_grpc as grpc_pb

PIECES = [("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n")]


class Printing(grpc_pb.ToolServiceServicer):
    """A gateway whose calls print PIECES; `breaks` of their streams end after the second, the next has the result."""

    def __init__(self) -> None:
        self.breaks = 0
        self.cancelled: list[str] = []
        self.asked: set[str] = set()

    async def StreamToolCall(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        again = request.call.request_id in self.asked
        self.asked.add(request.call.request_id)
        for number, (stream, data) in enumerate(() if again else PIECES):
            if number == 2 and self.breaks:
                self.breaks -= 1
                error = status_of(Unavailable("broken"))
                await context.abort_with_status(rpc_status.to_status(error))
            yield pb.StreamToolCallResponse(output=pb.ToolOutput(stderr=stream == "stderr", data=data))
        result = pb.ToolResult(outcome="exited", stdout=b"one\nthree\n", stderr=b"two\n", content=b"all")
        yield pb.StreamToolCallResponse(result=result)

    async def CancelToolCall(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.cancelled.append(request.request_id)
        return pb.CancelToolCallResponse()


@pytest.fixture
async def printing() -> AsyncIterator[tuple[Printing, Client]]:
    servicer, server = Printing(), grpc.aio.server()
    grpc_pb.add_ToolServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x", retry=Retry(first_s=0.001)) as client:
        yield servicer, client
    await server.stop(None)


def callbacks(reported: list[tuple[str, bytes]]) -> dict[str, OnOutput]:
    async def later(stream: str, data: bytes) -> None:
        await asyncio.sleep(0)
        reported.append((stream, data))

    return {"function": lambda stream, data: reported.append((stream, data)), "coroutine function": later}


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
async def test_output_is_given_to_either_kind_of_function(printing: tuple[Printing, Client], kind: str) -> None:
    reported: list[tuple[str, bytes]] = []
    result = await printing[1].call_tool("execute", {}, on_output=callbacks(reported)[kind])
    assert reported == PIECES
    assert result.outcome == "exited"


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
async def test_output_that_a_broken_stream_did_not_bring_is_given_from_the_result(
    printing: tuple[Printing, Client], kind: str
) -> None:
    servicer, client = printing
    servicer.breaks = 1
    reported: list[tuple[str, bytes]] = []
    await client.call_tool("execute", {}, on_output=callbacks(reported)[kind])
    assert reported == PIECES


async def test_what_a_callback_raises_reaches_the_caller_and_ends_the_call(
    printing: tuple[Printing, Client],
) -> None:
    async def broken(stream: str, data: bytes) -> None:
        raise ZeroDivisionError

    servicer, client = printing
    with pytest.raises(ZeroDivisionError):
        await client.call_tool("execute", {}, on_output=broken, request_id="mine")
    assert servicer.cancelled == ["mine"]
