"""Files through the client: every path the policy lets it, bytes as they are, typed errors."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from airlock.v1 import workspace_service_pb2 as pb
from gateway.client import Client
from gateway.errors import InvalidArgument, InvalidPath, IsADirectory, NotFound, PermissionDenied
from gateway.v1.workspace_service_pb2_grpc import WorkspaceServiceStub
from tests.integration.gateway.conftest import Pair


@pytest.mark.parametrize("path", ["/workspace/deep/er/a.bin", "/tmp/a.bin", "relative.bin"])
@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 3_000_000])
async def test_what_was_written_is_read_back(client: Client, path: str, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    assert await client.write_file("files", path, data) == size_bytes
    assert await client.read_file("files", path) == data


async def test_file_errors_are_classes(client: Client) -> None:
    await client.write_file("files", "/workspace/dir/file", b"x")
    with pytest.raises(NotFound):
        await client.read_file("files", "/workspace/nothing")
    with pytest.raises(IsADirectory):
        await client.read_file("files", "/workspace/dir")
    with pytest.raises(PermissionDenied):
        await client.read_file("files", "/etc/shadow")
    with pytest.raises(InvalidPath):
        await client.read_file("files", "/workspace/a\0b")
    with pytest.raises(InvalidPath):
        await client.write_file("files", "", b"x")


async def test_a_file_belongs_to_tool_code_and_keeps_its_mode(client: Client) -> None:
    await client.write_file("files", "/workspace/script", b"#!/bin/sh\necho old\n")
    await client.call_tool("execute", {"command": "chmod 755 script"}, thread="files")
    await client.write_file("files", "/workspace/script", b"#!/bin/sh\necho new\n")
    result = await client.call_tool("execute", {"command": "./script && echo more >> script"}, thread="files")
    assert (result.content, result.exit_code) == ("new\n", 0)


async def test_threads_do_not_share_a_workspace(client: Client) -> None:
    await client.write_file("one", "/workspace/mine", b"1")
    with pytest.raises(NotFound):
        await client.read_file("two", "/workspace/mine")


async def test_a_file_is_written_from_a_stream(client: Client) -> None:
    async def source() -> AsyncIterator[bytes]:
        for n in range(5):
            yield bytes([n]) * 700_000

    assert await client.write_file("files", "streamed", source()) == 3_500_000
    assert await client.read_file("files", "streamed") == b"".join(bytes([n]) * 700_000 for n in range(5))


async def test_a_source_that_fails_leaves_the_old_file(client: Client) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    await client.write_file("files", "kept", b"whole")
    with pytest.raises(RuntimeError, match="the source broke"):
        await client.write_file("files", "kept", source())
    assert await client.read_file("files", "kept") == b"whole"


@pytest.mark.parametrize("close_politely", [True, False])
async def test_an_upload_that_is_cut_off_leaves_the_old_file(client: Client, pair: Pair, close_politely: bool) -> None:
    await client.write_file("files", "cut", b"whole")
    async with grpc.aio.insecure_channel(pair.address) as channel:
        call = WorkspaceServiceStub(channel).WriteFile(metadata=(("authorization", f"Bearer {pair.key}"),))
        await call.write(pb.WriteFileRequest(thread="files", path="cut", data=b"half"))
        if close_politely:
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="closed before a message with end"):
                await call
    # A second upload waits for nothing of the first one's.
    await client.write_file("files", "after", b"x")
    assert await client.read_file("files", "cut") == b"whole"


@pytest.mark.parametrize(
    "offset, limit_bytes", [(0, 1), (0, 3_000_000), (1, None), (1_500_000, 600_000), (2_999_999, 9), (2_999_999, 1)]
)
async def test_a_part_of_a_file_is_its_bytes(client: Client, offset: int, limit_bytes: int | None) -> None:
    data = bytes(range(250)) * 12_000
    await client.write_file("parts", "part.bin", data)
    end = None if limit_bytes is None else offset + limit_bytes
    assert await client.read_file("parts", "part.bin", offset=offset, limit_bytes=limit_bytes) == data[offset:end]


async def test_past_the_end_of_a_file_nothing_comes_but_what_it_is(client: Client, pair: Pair) -> None:
    await client.write_file("parts", "short", b"abc")
    for offset in (3, 4, 2**62):
        assert await client.read_file("parts", "short", offset=offset) == b""
        async with grpc.aio.insecure_channel(pair.address) as channel:
            request = pb.ReadFileRequest(thread="parts", path="short", offset=offset)
            call = WorkspaceServiceStub(channel).ReadFile(request, metadata=(("authorization", f"Bearer {pair.key}"),))
            (reported,) = [answer async for answer in call]
        assert (reported.data, reported.file.name, reported.file.size_bytes) == (b"", "short", 3)


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, {"offset": 2**62 + 1}, {"limit_bytes": 0}, {"limit_bytes": 2**62 + 1}]
)
async def test_a_part_that_no_file_has_is_refused(client: Client, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=r"offset|limit_bytes"):
        await client.read_file("parts", "part.bin", **wrong)


async def test_the_etag_is_another_once_the_file_was_written(client: Client) -> None:
    await client.write_file("parts", "etag", b"one")
    before = await client.stat_file("parts", "etag")
    assert before == await client.stat_file("parts", "etag")
    await client.write_file("parts", "etag", b"two")
    assert (await client.stat_file("parts", "etag")).etag != before.etag
