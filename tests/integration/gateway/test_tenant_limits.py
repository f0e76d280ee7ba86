"""What a tenant reads from a real gateway when its sandbox is over its limit of disk, or it has too many made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.errors import NoSpace, QuotaExceeded, TooLarge
from tests.gateway_process import make_home, served

POLICY = """\
version: 1
description: Little disk, and few sandboxes.
sandbox: {workspace_mib: 64, memory_mib: 256}
eviction: {limit_chars: 10000000, head_chars: 50000, tail_chars: 50000}
quotas: {sandboxes_per_minute: 2}
rules:
  - {id: files, tools: [read, write], effect: allow, reason: The limits are what is tried.}
  - {id: commands, tools: [execute], effect: allow, reason: The limits are what is tried.}
"""


async def test_disk_and_the_making_of_sandboxes_are_limited_and_said_to_be(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    key = await asyncio.to_thread(home.add_tenant, "limited", POLICY)
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock:
            filling = "for n in 1 2 3 4 5 6; do head -c 40M /dev/zero > $n; done; sleep 60"
            ended = await airlock.call_tool("execute", {"command": filling}, thread="t")
            assert (ended.outcome, ended.is_error) == ("disk_limit", True)
            assert "exceeded its disk limit" in ended.note
            with pytest.raises(NoSpace, match="is its limit"):
                await airlock.write_file("t", "/workspace/more", b"x" * 1_000_000)
            program = await airlock.run_program(["sh", "-c", f"rm -f 4 5 6; {filling}"], thread="t")
            assert (program.outcome, "remove files" in program.message) == ("disk_limit", True)
            removed = await airlock.call_tool("execute", {"command": "rm -f [1-6] && echo gone"}, thread="t")
            assert (removed.outcome, removed.content) == ("exited", "gone\n")
            await airlock.write_file("t", "/workspace/more", b"x" * 1_000_000)

            refused: list[QuotaExceeded] = []
            for number in range(5):  # five, as a minute may turn in between
                try:
                    await airlock.write_file(f"t{number}", "/workspace/file", b"x")
                except QuotaExceeded as error:
                    refused.append(error)
            assert refused[-1].details == {"quota": "sandboxes_per_minute", "limit": "2"}
            assert 0 < (refused[-1].retry_after_s or 0) <= 60
            reported = await airlock.call_tool("execute", {"command": "true"}, thread="another")
            if reported.outcome != "exited":  # else the minute has turned
                assert (reported.outcome, "sandboxes_per_minute" in reported.note) == ("failed_to_start", True)
            # What lives is not made.
            assert (await airlock.call_tool("execute", {"command": "echo on"}, thread="t")).content == "on\n"


async def test_a_file_that_is_too_large_for_the_workspace_is_always_refused_for_that(tmp_path: Path) -> None:
    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(data), 1 << 20):
            yield data[at : at + (1 << 20)]

    home = await asyncio.to_thread(make_home, tmp_path / "home")
    key = await asyncio.to_thread(home.add_tenant, "limited", POLICY)
    data = b"x" * 100_000_000
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock:
            for _ in range(8):
                for source in (data, pieces(data)):
                    with pytest.raises(NoSpace, match="is its limit"):
                        await airlock.write_file("t", "/workspace/large", source)
            assert (await airlock.call_tool("ls", {"path": "/workspace"}, thread="t")).content_bytes == b"[]"


async def test_the_largest_arguments_and_the_largest_result_fit_in_their_messages(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    key = await asyncio.to_thread(home.add_tenant, "limited", POLICY)
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock:
            content = "x" * (4 * 1024 * 1024 - 200)
            written = await airlock.call_tool("write_file", {"path": "large", "content": content}, thread="t")
            assert (written.outcome, written.is_error) == ("completed", False), written
            assert await airlock.read_file("t", "large") == content.encode()
            with pytest.raises(TooLarge, match="the request has"):
                await airlock.call_tool("write_file", {"path": "large", "content": content + "x" * 200}, thread="t")

            face = "\N{GRINNING FACE}".encode()
            for count, whole in ((260_000, True), (9_999_999, False)):
                asked = {"command": f'python3 -c "print(chr(0x1F600) * {count})"'}
                shown = await airlock.call_tool("execute", asked, thread="t", request_id=f"faces-{count}")
                assert (shown.outcome, shown.evicted is None) == ("exited", whole), shown.note
                if whole:
                    assert shown.content_bytes == shown.stdout_bytes == face * count + b"\n"
                else:
                    assert shown.content_bytes.startswith(face * 50_000)
                again = await airlock.call_tool("execute", asked, thread="t", request_id=f"faces-{count}")
                assert again == shown
