"""Files through the client: every path the policy lets it, bytes as they are, typed errors."""

from __future__ import annotations

import os

import pytest

from gateway.client import Client
from gateway.errors import InvalidPath, IsADirectory, NotFound, PermissionDenied


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
