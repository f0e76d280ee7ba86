"""The life of a client: made anywhere, bound to the event loop that uses it first, closed once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from airlock.v1 import tool_service_pb2, workspace_service_pb2
from gateway.client import Client, ClientClosed, Unavailable, WrongEventLoop
from gateway.v1 import process_service_pb2_grpc, run_service_pb2_grpc, tool_service_pb2_grpc, workspace_service_pb2_grpc


class Threaded(
    tool_service_pb2_grpc.ToolServiceServicer,
    workspace_service_pb2_grpc.WorkspaceServiceServicer,
    process_service_pb2_grpc.ProcessServiceServicer,
    run_service_pb2_grpc.RunServiceServicer,
):
    """A gateway with threads instead of an event loop, so that tests can have loops of their own."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.free = threading.Event()

    def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name == "slow":
            self._wait()
        return tool_service_pb2.CallToolResponse(result=tool_service_pb2.ToolResult(outcome="exited"))

    def WriteFile(self, requests: Any, context: Any) -> Any:  # noqa: N802
        size_bytes = 0
        for request in requests:
            size_bytes += len(request.data)
            if request.path == "slow":
                self._wait()
        return workspace_service_pb2.WriteFileResponse(size_bytes=size_bytes)

    def RunProgram(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self._wait()
        yield from ()

    def WatchRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._wait()
        yield from ()

    def _wait(self) -> None:
        self.began.release()
        self.free.wait(60)


@pytest.fixture
def threaded() -> Iterator[tuple[str, Threaded]]:
    servicer, server = Threaded(), grpc.server(ThreadPoolExecutor(16))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    run_service_pb2_grpc.add_RunServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    servicer.free.set()
    server.stop(None).wait()


CALLS: dict[str, Callable[[Client], Coroutine[Any, Any, Any]]] = {
    "call": lambda client: client.call_tool("slow", {}),
    "upload": lambda client: client.write_file("t", "slow", b"data"),
    "program": lambda client: client.run_program(["cat"], stdin=b"data"),
    "stream": lambda client: anext(client.watch_run("run_1")),  # type: ignore[dict-item,return-value]
}


async def use(client: Client) -> None:
    assert (await client.call_tool("ls", {})).outcome == "exited"
    assert await client.write_file("t", "f", b"data") == 4


async def refused(client: Client, error: type[Exception], match: str) -> None:
    for call in CALLS.values():
        with pytest.raises(error, match=match):
            await asyncio.wait_for(call(client), 30)
    with pytest.raises(error, match=match):
        await client.__aenter__()


def in_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


def test_a_client_made_where_no_loop_runs_works_in_the_loop_that_uses_it_first(
    threaded: tuple[str, Threaded],
) -> None:
    def work() -> None:
        client = Client(threaded[0], "alk_x")

        async def used() -> None:
            await use(client)
            await client.aclose()

        asyncio.run(used())

    work()
    in_thread(work)


def test_another_loop_is_refused_with_the_right_one(threaded: tuple[str, Threaded]) -> None:
    client = Client(threaded[0], "alk_x")

    async def first() -> None:
        await use(client)
        await asyncio.to_thread(asyncio.run, refused(client, WrongEventLoop, "another event loop, the one it was"))
        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(asyncio.run, client.aclose())
        await use(client)

    asyncio.run(first())
    asyncio.run(refused(client, WrongEventLoop, "another event loop that is closed by now"))
    asyncio.run(client.aclose())
    asyncio.run(refused(client, ClientClosed, "make another"))
    gc.collect()  # the channel that was left behind does not complain


def test_entering_binds_a_client(threaded: tuple[str, Threaded]) -> None:
    client = Client(threaded[0], "alk_x")
    asyncio.run(client.__aenter__())
    with pytest.raises(WrongEventLoop, match="closed by now"):
        asyncio.run(use(client))


def test_where_no_asyncio_runs_the_error_says_so(threaded: tuple[str, Threaded]) -> None:
    call = Client(threaded[0], "alk_x").call_tool("ls", {})
    with pytest.raises(WrongEventLoop, match="works in asyncio"):
        call.send(None)


async def test_a_closed_client_says_so_whatever_it_is_asked(threaded: tuple[str, Threaded]) -> None:
    for used in (False, True):
        client = Client(threaded[0], "alk_x")
        if used:
            await use(client)
        await client.aclose()
        await client.aclose()
        await refused(client, ClientClosed, "this client is closed; make another")
    assert issubclass(ClientClosed, Unavailable)


async def test_a_client_is_closed_at_the_end_of_its_block(threaded: tuple[str, Threaded]) -> None:
    async with Client(threaded[0], "alk_x") as client:
        await use(client)
    await refused(client, ClientClosed, "make another")


@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_under_way_ends_when_its_client_is_closed_and_is_not_taken_for_cancelled(
    threaded: tuple[str, Threaded], kind: str
) -> None:
    address, servicer = threaded
    client = Client(address, "alk_x")
    calling = asyncio.ensure_future(CALLS[kind](client))
    await asyncio.to_thread(servicer.began.acquire)
    await client.aclose()
    with pytest.raises(ClientClosed, match="while the call was under way"):
        await calling


@pytest.mark.parametrize("kind", CALLS)
async def test_a_cancelled_call_stays_cancelled_also_when_its_client_is_closed(
    threaded: tuple[str, Threaded], kind: str
) -> None:
    address, servicer = threaded
    client = Client(address, "alk_x")
    calling = asyncio.ensure_future(CALLS[kind](client))
    await asyncio.to_thread(servicer.began.acquire)
    calling.cancel()
    await client.aclose()
    with pytest.raises(asyncio.CancelledError):
        await calling
