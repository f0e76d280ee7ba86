"""Files through the client: every path the policy lets it, bytes as they are, typed errors."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from gateway.client import Client
from gateway.errors import InvalidPath, IsADirectory, NotFound, PermissionDenied
from gateway.v1 import workspace_service_pb2 as pb
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
