"""A disk that fills up under a gateway's database: what callers hear, and what is written afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.client import Client, Retry
from gateway.errors import Unavailable
from gateway.storage.database import Database
from tests.docker_state import containers_of
from tests.gateway_process import Home, make_home, served

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system: run as root")
PATIENT = Retry(attempts=60, longest_s=0.5)
RECORDS = "SELECT outcome, verdict, details FROM audit_records WHERE kind = 'tool_call' ORDER BY sequence"


@dataclass(frozen=True)
class SmallDisk:
    """A home whose database is on a file system of 16 MiB."""

    home: Home
    filler: Path

    def fill(self) -> None:
        """Leave no byte for the database."""
        with self.filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - that it is raised is how the loop ends

    def free(self) -> None:
        """Give back what `fill` took."""
        self.filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    home, small = make_home(tmp_path), tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "airlock-test", small], check=True)
    try:
        url = f"sqlite:///{small / 'airlock.db'}"
        asyncio.run(_migrated(url))
        home.store_in(url)
        yield SmallDisk(home, small / "filler")
    finally:
        subprocess.run(["umount", small], check=True)


async def _migrated(url: str) -> None:
    await (await Database.open(url)).close()


async def _under_way(home: Home) -> None:
    until_s = time.monotonic() + 60
    while not home.rows("SELECT id FROM tool_calls WHERE state = 'executing'"):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)


async def test_a_call_during_which_the_disk_fills_is_answered_and_has_its_result_once_there_is_room(
    disk: SmallDisk,
) -> None:
    asked = ("execute", {"command": "echo run >> f; until [ -e /tmp/go ]; do sleep 0.05; done"})
    with served(disk.home) as gateway, contextlib.ExitStack() as full:
        async with Client(gateway.address, disk.home.key) as client:
            await client.call_tool("ls", {"path": "/workspace"})
            call = asyncio.create_task(client.call_tool(*asked, request_id="r1"))
            await _under_way(disk.home)
            disk.fill()
            full.callback(disk.free)
            (sandbox,) = containers_of(disk.home.instance)
            subprocess.run(["docker", "exec", sandbox, "touch", "/tmp/go"], check=True)
            with pytest.raises(Unavailable, match="its result is withheld") as raised:
                await call
            assert raised.value.details["outcome"] == "withheld"
        full.close()
        async with Client(gateway.address, disk.home.key, retry=PATIENT) as client:
            result = await client.call_tool(*asked, request_id="r1")
            assert (result.outcome, result.exit_code) == ("exited", 0)
            assert result.call_id == raised.value.details["call_id"]
            assert await client.read_file("default", "f") == b"run\n"
    assert [outcome for outcome, *_ in disk.home.rows(RECORDS)] == ["completed", "exited"]


async def test_a_call_that_a_full_disk_keeps_from_being_recorded_does_not_execute_and_leaves_one_record(
    disk: SmallDisk,
) -> None:
    with served(disk.home) as gateway:
        async with Client(gateway.address, disk.home.key) as client:
            await client.call_tool("execute", {"command": "echo one > one"})
            disk.fill()
            try:
                with pytest.raises(Unavailable, match="did not run and changed nothing") as raised:
                    await client.call_tool("execute", {"command": "echo two > two"})
            finally:
                disk.free()
            assert raised.value.details["outcome"] == "not_executed"
        async with Client(gateway.address, disk.home.key, retry=PATIENT) as client:
            listed = await client.call_tool("execute", {"command": "ls"})
            assert listed.content == "one\n"
    outcomes = sorted((outcome, verdict) for outcome, verdict, _ in disk.home.rows(RECORDS))
    assert outcomes == [("exited", "allow"), ("exited", "allow"), ("not_executed", "allow")]
    (details,) = (details for outcome, _, details in disk.home.rows(RECORDS) if outcome == "not_executed")
    assert "database or disk is full" in details
