"""Forks over a real gateway: of a run's steps, whose files are kept by themselves, and when a gateway is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client
from gateway.errors import Conflict, NotFound, ScopeMissing, Unavailable, WorkspaceNotSaved
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, make_home, served
from tests.integration.gateway.conftest import Pair

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
SUM = {"command": "sha256sum big | cut -c1-64"}


def _writes(text: str) -> Turn:
    return Turn(say="I write.", calls=(Call("execute", {"command": f"echo {text} > file; echo {text} >> all"}),))


async def _names(client: Client, thread: str) -> list[str]:
    return [one.name async for one in client.list_files(thread, "/workspace")]


async def test_a_thread_is_forked_after_a_step_of_its_run_and_the_fork_goes_its_own_way(tmp_path: Path) -> None:
    turns = [_writes("one"), _writes("two$(cat mark 2>/dev/null)"), Turn(say="Done.")]
    async with ScriptedModelServer(turns) as model:
        home = await asyncio.to_thread(make_home, tmp_path / "home")
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        policy = home.config.parent / "policies" / "default.yaml"
        policy.write_text(policy.read_text().replace("  runtime: runc\n", "  runtime: runc\n  snapshots: step\n"))
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as client:
                run = await client.start_run("write", thread="t")
                events = [event async for event in client.watch_run(run.id)]
                saved = [event.payload["step"] for event in events if event.type == "workspace_saved"]
                assert saved == [1, 2]
                kept = [one async for one in client.snapshots(thread="t")]
                assert [(one.kind, one.step, one.run_id) for one in kept] == [("step", 2, run.id), ("step", 1, run.id)]
                made = await client.fork_thread("t", "fork", run_id=run.id, step=1)
                assert (made.thread, made.step, made.snapshot_id) == ("fork", 1, kept[1].id)
                said = [one.role async for one in client.messages("fork")]
                assert said == ["user", "assistant", "tool"]
                await client.write_file("fork", "/workspace/mark", b" otherwise")
                again = await client.start_run("go on otherwise", thread="fork")
                assert [event async for event in client.watch_run(again.id)][-1].payload["status"] == "completed"
                assert await client.read_file("fork", "/workspace/all") == b"one\ntwo otherwise\n"
                assert await client.read_file("t", "/workspace/all") == b"one\ntwo\n"
                with pytest.raises(WorkspaceNotSaved, match="1, 2"):
                    await client.fork_thread("t", "never", run_id=run.id, step=7)
                command = ("sandbox", "fork", "t", "end", "--run", run.id, "--address", gateway.address, "--json")
                reported = await asyncio.to_thread(airlock, *command, env={"AIRLOCK_API_KEY": home.key})
                assert (json.loads(reported.stdout)["step"], json.loads(reported.stdout)["messages"]) == (3, 6)
                assert await client.read_file("end", "/workspace/file") == b"two\n"
                await client.delete_thread("t")
                with pytest.raises(NotFound, match="thread 't' not found"):
                    await anext(client.snapshots(thread="t"))
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_a_fork_of_now_is_refused_to_others_and_to_keys_that_may_not_read_threads(pair: Pair) -> None:
    async with Client(pair.address, pair.key) as client, Client(pair.address, pair.other_key) as other:
        await client.write_file("f1", "/workspace/a", b"a")
        made = await client.fork_thread("f1", "f2")
        assert (made.of_thread, made.messages, made.step) == ("f1", 0, 0)
        assert await client.read_file("f2", "/workspace/a") == b"a"
        with pytest.raises(Conflict):
            await client.fork_thread("f1", "f2")
        with pytest.raises(NotFound):
            await other.fork_thread("f1", "f3")
        config = ("--config", str(pair.home.config), "--json")
        key = await asyncio.to_thread(airlock, "key", "create", "--tenant", "default", "--scope", "files", *config)
        async with Client(pair.address, json.loads(key.stdout)["key"]) as narrow:
            with pytest.raises(ScopeMissing, match="run"):
                await narrow.fork_thread("f1", "f3")


async def test_a_gateway_that_is_killed_while_it_restores_or_forks_leaves_nothing_half_made(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    home.configure(sandbox={"keep_workspaces": True})
    with served(home) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.call_tool("execute", {"command": "head -c 60000000 /dev/urandom > big"}, thread="t")
            kept = await client.create_snapshot("t")
            whole = (await client.call_tool("execute", SUM, thread="t")).content
            await client.call_tool("execute", {"command": "echo newer > big"}, thread="t")
            restoring = asyncio.create_task(client.restore_snapshot(kept.id, request_id="restore"))
            await _until(lambda: _marked(home, "rst_"), restoring)
            gateway.kill()
            with pytest.raises(Unavailable):
                await restoring
    with served(home) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            with pytest.raises(Unavailable, match="restore"):
                await client.read_file("t", "/workspace/big")
            assert await client.restore_snapshot(kept.id, request_id="restore") == "t"
            assert (await client.call_tool("execute", SUM, thread="t")).content == whole
            await client.write_file("t", "/workspace/later", b"")
            assert await client.restore_snapshot(kept.id, request_id="restore") == "t"
            assert await _names(client, "t") == ["big", "later"]  # for it was done once
            volumes = len(volumes_of(home.instance))
            forking = asyncio.create_task(client.fork_thread("t", "fork", snapshot_id=kept.id, request_id="fork"))
            await _until(lambda: _marked(home, "frk_"), forking)
            assert [one.name async for one in client.list_threads()] == ["t"]
            gateway.kill()
            with pytest.raises(Unavailable):
                await forking
    home.configure(sandbox={"keep_workspaces": False})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await _until(lambda: not _marked(home, "frk_"))
            assert len(volumes_of(home.instance)) <= volumes
            await client.fork_thread("t", "fork", snapshot_id=kept.id, request_id="fork")
            assert (await client.call_tool("execute", SUM, thread="fork")).content == whole
            assert sorted([one.name async for one in client.list_threads()]) == ["fork", "t"]
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


def _marked(home: Home, mark: str) -> bool:
    """Return whether a thread is being restored or made, by a look that takes no time to speak of."""
    with contextlib.closing(sqlite3.connect(home.config.parent / "state" / "airlock.db")) as database:
        found = database.execute("SELECT 1 FROM threads WHERE deletion LIKE ?", (f"{mark}%",))
        return found.fetchone() is not None


async def _until(happened: Callable[[], bool], work: asyncio.Task[Any] | None = None) -> None:
    """Return in the midst of some work, or once something has happened."""
    while not happened():
        assert work is None or not work.done(), "it was over before it was seen"
        await asyncio.sleep(0.001)
