"""Snapshots over a real gateway: kept, listed, put back, deleted, and never another tenant's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.errors import InvalidArgument, NotFound, RequestIdReused, ThreadBusy, Unavailable
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import make_home, served
from tests.integration.gateway.conftest import Pair


async def test_files_are_kept_and_put_back_into_the_thread_and_into_another(pair: Pair) -> None:
    async with Client(pair.address, pair.key) as client:
        await client.call_tool("execute", {"command": "mkdir d && echo one > d/a && mkfifo pipe"}, thread="s1")
        kept = await client.create_snapshot("s1", comment="before")
        assert (kept.thread, kept.files, kept.size_bytes, kept.skipped, kept.comment) == ("s1", 1, 4, 1, "before")
        assert await client.get_snapshot(kept.id) == kept
        await client.call_tool("execute", {"command": "echo two > d/a; touch b"}, thread="s1")
        assert await client.restore_snapshot(kept.id) == "s1"
        async for reported in client.watch_sandbox_transitions(thread="s1", after_id=0):
            if reported.state == "removed":
                assert reported.reason == "its thread's files are being replaced"
                break
        found = await client.call_tool("execute", {"command": "ls; cat d/a"}, thread="s1")
        assert found.content == "d\none\n"
        assert await client.restore_snapshot(kept.id, thread="s2") == "s2"
        found = await client.call_tool("execute", {"command": "cat d/a; echo mine > d/a; cat d/a"}, thread="s2")
        assert found.content == "one\nmine\n"
        assert [one.id async for one in client.snapshots(thread="s1")] == [kept.id]
        assert [one.id async for one in client.snapshots(thread="s2")] == []
        await client.delete_snapshot(kept.id)
        with pytest.raises(NotFound):
            await client.restore_snapshot(kept.id)
        kinds = pair.home.rows("SELECT kind FROM audit_records WHERE thread = 's1' AND kind LIKE 'snapshot%'")
        assert sorted(kinds) == [("snapshot_created",), ("snapshot_deleted",), ("snapshot_restored",)]


async def test_a_request_makes_one_snapshot_and_its_id_is_good_for_no_other(pair: Pair) -> None:
    async with Client(pair.address, pair.key) as client:
        await client.write_file("s3", "/workspace/a", b"a")
        kept = await client.create_snapshot("s3", request_id="once")
        assert await client.create_snapshot("s3", request_id="once") == kept
        with pytest.raises(RequestIdReused):
            await client.create_snapshot("s3", comment="other", request_id="once")
        with pytest.raises(NotFound):
            await client.create_snapshot("never-there")
        with pytest.raises(InvalidArgument):
            await client.get_snapshot("")


async def test_another_tenants_snapshot_is_not_there(pair: Pair) -> None:
    async with Client(pair.address, pair.key) as client, Client(pair.address, pair.other_key) as other:
        await client.write_file("s4", "/workspace/a", b"a")
        kept = await client.create_snapshot("s4")
        for asked in (other.get_snapshot, other.delete_snapshot, other.restore_snapshot):
            with pytest.raises(NotFound):
                await asked(kept.id)
        assert [one async for one in other.snapshots()] == []
        assert await client.get_snapshot(kept.id) == kept


async def test_a_thread_is_not_restored_while_a_call_is_under_way_in_it(pair: Pair) -> None:
    async with Client(pair.address, pair.key) as client:
        await client.write_file("s5", "/workspace/a", b"a")
        kept = await client.create_snapshot("s5")
        command = {"command": "touch begun; until [ -e end ]; do sleep 0.05; done", "timeout_s": 60}
        call = asyncio.create_task(client.call_tool("execute", command, thread="s5"))
        while "begun" not in await _names(client, "s5"):
            pass
        with pytest.raises(ThreadBusy):
            await client.restore_snapshot(kept.id)
        await client.write_file("s5", "/workspace/end", b"")
        assert (await call).exit_code == 0
        await client.restore_snapshot(kept.id)
        assert await _names(client, "s5") == ["a"]


async def _names(client: Client, thread: str) -> list[str]:
    return [one.name async for one in client.list_files(thread, "/workspace")]


async def test_a_gateway_that_is_killed_while_it_takes_one_leaves_nothing_of_it(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    home.configure(sandbox={"keep_workspaces": True})
    kept = tmp_path / "state" / "snapshots"
    with served(home) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.call_tool("execute", {"command": "head -c 60000000 /dev/urandom > big"}, thread="t")
            taking = asyncio.create_task(client.create_snapshot("t"))
            while not any(kept.rglob("blobs/*/*")):
                await asyncio.sleep(0.01)
            gateway.kill()
            with pytest.raises(Unavailable):
                await taking
    assert any(kept.rglob("blobs/*/*"))
    home.configure(sandbox={"keep_workspaces": False})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            assert [one async for one in client.snapshots()] == []
            while any(kept.rglob("blobs/*/*")):
                await asyncio.sleep(0.01)
            whole = await client.create_snapshot("t")
            assert whole.size_bytes == 60_000_000
            await client.restore_snapshot(whole.id, thread="u")
            compared = "sha256sum big | cut -c1-64"
            sums = [(await client.call_tool("execute", {"command": compared}, thread=one)).content for one in "tu"]
            assert sums[0] == sums[1]
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_a_thread_whose_restore_was_cut_short_takes_no_calls_until_it_is_restored(pair: Pair) -> None:
    async with Client(pair.address, pair.key, retry=None) as client:
        await client.write_file("s6", "/workspace/a", b"a")
        kept = await client.create_snapshot("s6")
        pair.home.write("UPDATE threads SET deletion = 'rst_lost' WHERE name = 's6'")
        with pytest.raises(Unavailable, match="restore"):
            await client.read_file("s6", "/workspace/a")
        await client.restore_snapshot(kept.id)
        assert await client.read_file("s6", "/workspace/a") == b"a"
