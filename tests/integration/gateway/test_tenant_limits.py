"""What a tenant is told by a real gateway when its sandbox is over its limit of disk, or it has too many made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.errors import NoSpace, QuotaExceeded
from tests.gateway_process import make_home, served

POLICY = """\
version: 1
description: Little disk, and few sandboxes.
sandbox: {workspace_mib: 64, memory_mib: 128}
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
            assert "limit of disk was reached" in ended.note
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
            told = await airlock.call_tool("execute", {"command": "true"}, thread="another")
            if told.outcome != "exited":  # else the minute has turned
                assert (told.outcome, "sandboxes_per_minute" in told.note) == ("failed_to_start", True)
            # What lives is not made.
            assert (await airlock.call_tool("execute", {"command": "echo on"}, thread="t")).content == "on\n"
