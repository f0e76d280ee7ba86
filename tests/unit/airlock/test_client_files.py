"""Downloads that break: the client reads on where it was, unless the file was written meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from grpc_status import rpc_status

from airlock.v1 import workspace_service_pb2 as pb
from gateway.client import Client, NotFound, Retry, Unavailable
from gateway.errors import AirlockError
from gateway.serving.edge import status_of
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb

DATA = bytes(range(256)) * 4
QUICK = Retry(attempts=4, first_s=0.001, longest_s=0.01, resume_s=0.05)


async def abort(context: Any, error: AirlockError) -> None:
    await context.abort_with_status(rpc_status.to_status(status_of(error)))


class Breaking(grpc_pb.WorkspaceServiceServicer):
    """A gateway that sends 300 bytes of a file and breaks; `etags` are those of the file at each read."""

    def __init__(self) -> None:
        self.etags: list[str] = []
        self.reads: list[tuple[int, int]] = []
        self.removed = False
        self.removals = 0

    async def ReadFile(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.reads.append((request.offset, request.limit_bytes))
        if self.removed and request.offset:
            await abort(context, NotFound("gone"))
        if not self.etags:
            await abort(context, Unavailable("not yet begun"))
        file = pb.FileEntry(name="f", kind=pb.FILE_KIND_FILE, size_bytes=len(DATA), etag=self.etags.pop(0))
        wanted = DATA[request.offset :][: request.limit_bytes or None]
        yield pb.ReadFileResponse(data=wanted[:100], file=file)
        for start in (100, 200):
            yield pb.ReadFileResponse(data=wanted[start : start + 100])
        if len(wanted) >= 300:
            await abort(context, Unavailable("broken"))

    async def RemoveFile(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.removals += 1
        if self.removals == 1:
            await abort(context, Unavailable("its answer is lost"))
        return pb.RemoveFileResponse()


@pytest.fixture
async def breaking() -> AsyncIterator[tuple[Breaking, Client]]:
    servicer, server = Breaking(), grpc.aio.server()
    grpc_pb.add_WorkspaceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x", retry=QUICK) as client:
        yield servicer, client
    await server.stop(None)


async def test_a_read_goes_on_with_the_byte_after_the_last_that_came(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    servicer.etags = ["a"] * 4
    assert await client.read_file("t", "f") == DATA
    assert servicer.reads == [(0, 0), (300, 0), (600, 0), (900, 0)]


async def test_a_part_that_broke_has_the_bytes_that_were_asked_for(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    servicer.etags = ["a"] * 3
    # All 600 had come when it broke the second time: nothing more is wanted, and one byte is what can be asked for.
    assert await client.read_file("t", "f", offset=10, limit_bytes=600) == DATA[10:610]
    assert servicer.reads == [(10, 600), (310, 300), (610, 1)]


async def test_a_file_that_was_written_meanwhile_is_not_mixed(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    servicer.etags = ["a", "b"]
    got = bytearray()
    with pytest.raises(Unavailable, match="written meanwhile"):
        async for piece in client.stream_file("t", "f"):
            got += piece
    assert bytes(got) == DATA[:300]


async def test_a_read_that_does_not_begin_is_tried_again_no_longer_than_a_call(
    breaking: tuple[Breaking, Client],
) -> None:
    servicer, client = breaking
    with pytest.raises(Unavailable, match="not yet begun"):
        await client.read_file("t", "f")
    assert len(servicer.reads) == QUICK.attempts


async def test_without_retries_a_read_that_breaks_is_over(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    servicer.etags = ["a"] * 2
    client._retry = None
    with pytest.raises(Unavailable, match="broken"):
        await client.read_file("t", "f")
    assert len(servicer.reads) == 1


async def test_a_removal_is_asked_for_again_only_where_nothing_there_is_no_error(
    breaking: tuple[Breaking, Client],
) -> None:
    servicer, client = breaking
    await client.remove_file("t", "f", missing_ok=True)
    assert servicer.removals == 2
    servicer.removals = 0
    with pytest.raises(Unavailable, match="lost"):
        await client.remove_file("t", "f")
    assert servicer.removals == 1


async def test_a_file_that_is_gone_when_it_is_read_on_is_not_found(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    servicer.etags, servicer.removed = ["a"], True
    with pytest.raises(NotFound, match="gone"):
        await client.read_file("t", "f")
