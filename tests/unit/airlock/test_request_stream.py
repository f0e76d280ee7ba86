"""Streams that the client writes to: what ends the call early is what the caller hears, whatever was being sent."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_status import rpc_status

from airlock.v1 import process_service_pb2, workspace_service_pb2
from gateway.client import Client, Input, InvalidArgument, NoSpace, Retry, Unavailable
from gateway.errors import AirlockError
from gateway.serving.edge import status_of
from gateway.v1 import process_service_pb2_grpc, workspace_service_pb2_grpc
from tests.cutting_proxy import CuttingProxy

DATA = bytes(range(256)) * 20_000  # 5 MB
QUICK = Retry(attempts=3, first_s=0.001, longest_s=0.01)
Call = Callable[[Client, Input], Any]


class Taking(workspace_service_pb2_grpc.WorkspaceServiceServicer, process_service_pb2_grpc.ProcessServiceServicer):
    """A gateway that takes what is sent, or refuses it after so many messages."""

    def __init__(self) -> None:
        self.refuse_after: int | None = None
        self.error: AirlockError = NoSpace("the workspace is full", disk="full")
        self.refusals = 10**6
        self.taken = b""
        self.began = asyncio.Event()

    async def WriteFile(self, requests: Any, context: Any) -> Any:  # noqa: N802
        await self._take(requests, context)
        return workspace_service_pb2.WriteFileResponse(size_bytes=len(self.taken))

    async def RunProgram(self, requests: Any, context: Any) -> Any:  # noqa: N802
        await self._take(requests, context)
        yield process_service_pb2.RunProgramResponse(end=process_service_pb2.ProgramEnd(outcome="exited", exit_code=0))

    async def _take(self, requests: Any, context: Any) -> None:
        self.taken, number = b"", 0
        async for request in requests:
            self.began.set()
            number += 1
            if number == self.refuse_after and self.refusals:
                self.refusals -= 1
                await context.abort_with_status(rpc_status.to_status(status_of(self.error)))
            self.taken += request.data if isinstance(request, workspace_service_pb2.WriteFileRequest) else request.stdin


async def write(client: Client, data: Input) -> None:
    await client.write_file("t", "f", data)


async def run(client: Client, data: Input) -> None:
    await client.run_program(["cat"], stdin=data)


async def generated(data: bytes, piece_bytes: int = 700_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), piece_bytes):
        yield data[at : at + piece_bytes]


@pytest.fixture(params=["bytes", "iterator", "file", "path"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Input]]:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with contextlib.ExitStack() as files:
        yield _source(request.param, path, files)


def _source(kind: str, path: Path, files: contextlib.ExitStack) -> Callable[[], Input]:
    makers: dict[str, Callable[[], Input]] = {
        "bytes": lambda: DATA,
        "iterator": lambda: generated(DATA),
        "file": lambda: files.enter_context(path.open("rb")),
        "path": lambda: path,
    }
    return makers[kind]


@pytest.fixture(params=[write, run])
def call(request: pytest.FixtureRequest) -> Call:
    made: Call = request.param
    return made


@pytest.fixture
async def address_and_taking() -> AsyncIterator[tuple[str, Taking]]:
    taking, server = Taking(), grpc.aio.server()
    workspace_service_pb2_grpc.add_WorkspaceServiceServicer_to_server(taking, server)  # type: ignore[no-untyped-call]
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(taking, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", taking
    await server.stop(None)


@pytest.fixture
async def taking(address_and_taking: tuple[str, Taking]) -> Taking:
    return address_and_taking[1]


@pytest.fixture
async def client(address_and_taking: tuple[str, Taking]) -> AsyncIterator[Client]:
    async with Client(address_and_taking[0], "alk_x", retry=QUICK) as airlock:
        yield airlock


async def test_everything_that_was_given_arrives(
    client: Client, taking: Taking, call: Call, source: Callable[[], Input]
) -> None:
    await call(client, source())
    assert taking.taken == DATA


@pytest.mark.parametrize("messages", [1, 2, 5])
async def test_a_refusal_in_the_midst_is_what_the_caller_hears(
    client: Client, taking: Taking, call: Call, source: Callable[[], Input], messages: int
) -> None:
    taking.refuse_after = messages
    for _ in range(10):
        with pytest.raises(NoSpace, match="is full") as raised:
            await call(client, source())
        assert raised.value.details == {"disk": "full"}


async def test_a_refusal_is_heard_while_the_source_has_nothing_to_send(
    client: Client, taking: Taking, call: Call
) -> None:
    ended = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            ended.set()

    taking.refuse_after = 2
    with pytest.raises(NoSpace):
        await asyncio.wait_for(call(client, silent()), 30)
    assert ended.is_set()


async def test_a_connection_that_is_cut_is_unavailable_whatever_was_being_sent(
    address_and_taking: tuple[str, Taking], call: Call, source: Callable[[], Input]
) -> None:
    async with CuttingProxy(address_and_taking[0], 1, least_bytes=100_000, most_bytes=3_000_000) as proxy:
        for _ in range(10):
            async with Client(proxy.address, "alk_x", retry=None) as airlock:
                with pytest.raises(Unavailable):
                    await call(airlock, source())


async def test_a_call_with_an_interceptor_never_ends_in_an_error_of_grpcs_own(
    address_and_taking: tuple[str, Taking], monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    class Passing(grpc.aio.StreamUnaryClientInterceptor, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]
        async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
            return await continuation(details, requests)

        async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
            return await continuation(details, requests)

    make = grpc.aio.insecure_channel
    monkeypatch.setattr(
        grpc.aio, "insecure_channel", lambda *args, **more: make(*args, **more, interceptors=[Passing()])
    )
    address, taking = address_and_taking
    async with Client(address, "alk_x", retry=None) as airlock:
        await call(airlock, DATA)
        assert taking.taken == DATA
        taking.refuse_after = 3
        for _ in range(10):
            with pytest.raises((NoSpace, Unavailable)):
                await call(airlock, DATA)


async def test_what_can_be_read_again_is_sent_again_whole(
    client: Client, taking: Taking, call: Call, source: Callable[[], Input], request: pytest.FixtureRequest
) -> None:
    taking.refuse_after, taking.refusals, taking.error = 4, 1, Unavailable("gone for a moment")
    if "iterator" in request.node.callspec.id:
        with pytest.raises(Unavailable):
            await call(client, source())
    else:
        await call(client, source())
        assert taking.taken == DATA


async def test_a_file_is_sent_from_its_position_on(client: Client, taking: Taking, call: Call) -> None:
    file = io.BytesIO(DATA)
    file.seek(1_000)
    taking.refuse_after, taking.refusals, taking.error = 4, 1, Unavailable("gone for a moment")
    await call(client, file)
    assert taking.taken == DATA[1_000:]


async def test_what_the_source_raises_is_what_the_caller_gets(client: Client, call: Call, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1_000_000
        raise ZeroDivisionError

    async def text() -> AsyncIterator[Any]:
        yield "text"

    with pytest.raises(ZeroDivisionError):
        await call(client, broken())
    with pytest.raises(InvalidArgument, match="bytes are expected, and a str came"):
        await call(client, text())
    with pytest.raises(FileNotFoundError):
        await call(client, tmp_path / "missing")


@pytest.mark.parametrize(
    "data, said",
    [("text", "encode text"), ([b"a"], "not list"), (io.StringIO("text"), "binary mode"), (None, "not NoneType")],
)
async def test_what_is_no_input_is_refused_with_what_would_be(client: Client, data: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await write(client, data)


async def test_a_caller_that_is_cancelled_ends_the_call_and_the_source(
    client: Client, taking: Taking, call: Call
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        began.set()
        try:
            while True:
                yield b"x" * 1_000
                await asyncio.sleep(0)
        finally:
            ended.set()

    calling = asyncio.create_task(call(client, endless()))
    await taking.began.wait()
    await began.wait()  # a program's first message comes before its input
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()
