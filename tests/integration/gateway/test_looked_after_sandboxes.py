"""Sandboxes as their tenant looks after them, at a real gateway: made ahead, measured, resumed, deleted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.config.config import Config
from gateway.errors import NotFound, SandboxBusy
from sandbox.engines.docker.container_config import container_name
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import AIRLOCK, airlock, make_home, served
from tests.integration.gateway.conftest import Pair

MIB = 1024 * 1024
# Holds 60 MiB, and never rests.
_BUSY = "held = bytearray(b'x' * (60 << 20))\nprint('up', flush=True)\nwhile True: pass"


async def test_a_sandbox_is_there_ahead_of_its_first_call_and_goes_with_its_files(pair: Pair, client: Client) -> None:
    made = await client.create_sandbox("ahead")
    assert (await client.create_sandbox("ahead")).id == made.id
    await client.write_file("ahead", "/workspace/x", b"x")
    assert (await client.get_sandbox("ahead")).id == made.id
    was = await client.delete_sandbox("ahead")
    assert was is not None
    assert was.id == made.id
    for ask in (client.get_sandbox, client.delete_sandbox, client.get_sandbox_stats):
        with pytest.raises(NotFound):
            await ask("ahead")
    with pytest.raises(NotFound):
        await client.read_file("ahead", "/workspace/x")
    reported = pair.home.rows("SELECT kind FROM audit_records WHERE thread = 'ahead' ORDER BY sequence")
    assert [kind for (kind,) in reported] == [
        *("sandbox_created", "file_write", "sandbox_removed", "workspace_removed"),
        "file_read",
    ]


async def test_nothing_is_deleted_under_a_call(client: Client) -> None:
    up = asyncio.Event()
    command = {"command": "echo up; echo kept > /workspace/kept; read line < /workspace/end"}
    await client.call_tool("execute", {"command": "mkfifo /workspace/end"}, thread="under-way")
    calling = asyncio.create_task(
        client.call_tool("execute", command, thread="under-way", on_output=lambda stream, data: up.set())
    )
    await up.wait()
    with pytest.raises(SandboxBusy):
        await client.delete_sandbox("under-way")
    assert (await client.get_sandbox_stats("under-way")).calls == 1
    await client.call_tool("execute", {"command": "echo > /workspace/end"}, thread="under-way")
    assert (await calling).outcome == "exited"
    assert await client.read_file("under-way", "/workspace/kept") == b"kept\n"
    assert await client.delete_sandbox("under-way") is not None


async def test_what_a_sandbox_uses_is_what_was_done_in_it(client: Client) -> None:
    thread = "measured"
    fill = (
        "head -c 3000000 /dev/zero > a; mkdir -p d/e; head -c 1000 /dev/zero > d/e/b; head -c 500000 /dev/zero > /tmp/c"
    )
    assert (await client.call_tool("execute", {"command": fill}, thread=thread)).exit_code == 0
    idle = await client.get_sandbox_stats(thread)
    limits = (idle.memory_limit_bytes, idle.pids_limit, idle.cpus_limit)
    assert limits == (1024 * MIB, 512, 1.0)
    assert idle.workspace is not None
    assert idle.tmp is not None
    # By blocks of the disk, of directories as well.
    assert 3_001_000 <= idle.workspace.used_bytes < 3_001_000 + 64 * 1024
    assert (idle.workspace.partial, idle.workspace.limit_bytes) == (False, 2048 * MIB)
    assert 500_000 <= idle.tmp.used_bytes < 500_000 + 64 * 1024
    assert (idle.tmp.partial, idle.tmp.limit_bytes) == (False, 256 * MIB)
    assert idle.cpu_s is not None
    assert idle.memory_bytes is not None
    assert idle.pids is not None
    assert 0 < idle.memory_bytes < 60 * MIB

    process = await client.start_process(["python3", "-c", _BUSY], thread=thread)
    async for _ in client.process_output(thread, process.id):
        break
    readings = [
        one async for reading in client.watch_sandbox_stats(thread, interval_s=0.5, readings=3) for one in reading
    ]
    busy = readings[-1]
    assert busy.pids == idle.pids + 1
    assert busy.memory_bytes is not None
    assert busy.memory_bytes > idle.memory_bytes + 55 * MIB
    assert [one.cpu_s for one in readings] == sorted({one.cpu_s for one in readings if one.cpu_s is not None})
    assert busy.cpus is not None
    assert 0 < busy.cpus <= 1.5
    await client.stop_sandbox(thread)


async def test_what_is_stopped_on_demand_is_reported_to_watchers_and_started_by_the_next_call(client: Client) -> None:
    thread = "on-demand"
    await client.create_sandbox(thread)
    watching = client.watch_sandbox_transitions(thread=thread)
    first = asyncio.ensure_future(anext(watching))
    await client.write_file(thread, "/workspace/x", b"kept")
    stopped = await client.stop_sandbox(thread)
    assert (stopped.state, stopped.calls) == ("idle_stopped", 0)
    assert await client.stop_sandbox(thread) == stopped
    assert await client.read_file(thread, "/workspace/x") == b"kept"
    assert (await client.get_sandbox(thread)).id == stopped.id
    removed = await client.delete_sandbox(thread)
    assert removed is not None
    reported = [await first]
    while reported[-1].state != "removed":
        reported.append(await anext(watching))
    seen = [(one.sandbox_id, one.state) for one in reported]
    assert seen[-3:] == [(stopped.id, state) for state in ("idle_stopped", "running", "removed")]
    assert [one.id for one in reported] == sorted(one.id for one in reported)
    assert "requested" in reported[-1].reason
    for asked in (client.watch_sandbox_transitions, client.sandbox_transitions):
        with pytest.raises(NotFound, match="thread 'never' not found"):
            await anext(asked(thread="never"))


async def test_a_history_is_completed_though_its_process_was_killed(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as airlock:
            await airlock.create_sandbox("lost")
            async for one in airlock.watch_sandbox_transitions(thread="lost", after_id=0):
                if one.state == "running":
                    break
        gateway.kill()
    # Nothing is left that could tell whose it was, or that there was one.
    await asyncio.to_thread(
        subprocess.run, ["docker", "rm", "-f", *containers_of(home.instance)], check=True, capture_output=True
    )
    for locks in Config.load(home.config).resolved_channel_dir().glob("locks/*"):
        locks.unlink()
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as airlock:
            last = await anext(airlock.watch_sandbox_transitions(thread="lost", after_id=one.id))
            assert (last.sandbox_id, last.state) == (one.sandbox_id, "removed")
            assert [reported.state async for reported in airlock.sandbox_transitions()] == [
                "removed",
                "running",
                "creating",
            ]
            await airlock.delete_sandbox("lost")
    assert containers_of(home.instance) == volumes_of(home.instance) == []


async def test_one_that_dies_while_unused_is_reported_as_failed_with_the_reason_and_then_as_removed(
    pair: Pair, client: Client
) -> None:
    await client.write_file("dies", "/workspace/x", b"kept")
    was = await client.get_sandbox("dies")
    watching = client.watch_sandbox_transitions(thread="dies", after_id=0)
    reported = [await anext(watching), await anext(watching)]
    await asyncio.to_thread(
        subprocess.run, ["docker", "kill", container_name(pair.home.instance, was.id)], check=True, capture_output=True
    )
    reported.append(await anext(watching))
    assert [one.state for one in reported] == ["creating", "running", "failed"]
    assert reported[-1].reason == "its container ended with exit code 137 (SIGKILL)"
    assert (await client.get_sandbox("dies")).state == "failed"
    assert await client.read_file("dies", "/workspace/x") == b"kept"
    reported += [await anext(watching) for _ in range(3)]
    assert [one.state for one in reported if one.sandbox_id == was.id][3:] == ["removed"]
    assert [one.state for one in reported if one.sandbox_id != was.id] == ["creating", "running"]
    await client.delete_sandbox("dies")


async def test_unreadable_files_and_very_many_files_are_counted_all_the_same(client: Client) -> None:
    hide = "mkdir hidden && cd hidden && head -c 3000000 /dev/zero > y && seq 5000 | xargs touch && chmod 000 ."
    await client.call_tool("execute", {"command": hide}, thread="hidden")
    found = await client.get_sandbox_stats("hidden")
    assert found.workspace is not None
    assert found.workspace.used_bytes >= 3_000_000
    assert not found.workspace.partial
    await client.delete_sandbox("hidden")


def test_the_command_line_makes_measures_and_deletes(pair: Pair) -> None:
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    made = json.loads(airlock("sandbox", "create", "lined", "--json", env=env).stdout)
    (reported,) = json.loads(airlock("sandbox", "stats", "--thread", "lined", "--json", env=env).stdout)["sandboxes"]
    assert (reported["id"], reported["thread"], reported["pids_limit"]) == (made["id"], "lined", 512)
    assert reported["cpus"] is not None
    lines = airlock("sandbox", "top", "--interval-s", "0.5", "--readings", "2", "--json", env=env).stdout.splitlines()
    assert len(lines) == 2
    assert all("lined" in {one["thread"] for one in json.loads(line)["sandboxes"]} for line in lines)
    asked = airlock("sandbox", "delete", "lined", "--json", env=env, check=False)
    assert (asked.returncode, "--yes" in asked.stdout) == (2, True)
    gone = json.loads(airlock("sandbox", "delete", "lined", "--yes", "--json", env=env).stdout)
    assert gone["sandbox"]["id"] == made["id"]
    absent = airlock("sandbox", "stats", "--thread", "lined", "--json", env=env, check=False)
    assert (absent.returncode, json.loads(absent.stdout)["reason"]) == (3, "NOT_FOUND")


def test_the_command_line_shows_states_and_follows_what_becomes_of_them(pair: Pair) -> None:
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    made = json.loads(airlock("sandbox", "create", "followed", "--json", env=env).stdout)
    follow = [*AIRLOCK, "sandbox", "history", "--thread", "followed", "--follow", "--json"]
    with subprocess.Popen(follow, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        # Nothing new is reported before the watch is open: stop and start it until a transition arrives.
        reported: list[str] = []
        reader = threading.Thread(target=lambda: reported.append(following.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        while reader.is_alive():
            airlock("sandbox", "stop", "followed", "--json", env=env)
            airlock("sandbox", "resume", "followed", "--json", env=env)
        following.terminate()
    first = json.loads(reported[0])
    assert (first["sandbox_id"], first["thread"]) == (made["id"], "followed")
    assert first["state"] in ("idle_stopped", "running")
    again = [*follow, "--after", str(first["id"] - 1)]
    with subprocess.Popen(again, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline()) == first
        following.terminate()
    stopped = json.loads(airlock("sandbox", "stop", "followed", "--json", env=env).stdout)
    assert (stopped["state"], stopped["stops_at"]) == ("idle_stopped", None)
    assert stopped["removes_at"] > stopped["stopped_since"]
    listed = json.loads(airlock("sandbox", "list", "--state", "idle_stopped", "--json", env=env).stdout)["sandboxes"]
    assert made["id"] in {one["id"] for one in listed}
    wrong = airlock("sandbox", "list", "--state", "asleep", "--json", env=env, check=False)
    assert (wrong.returncode != 0, "idle_stopped" in wrong.stdout) == (True, True)
    airlock("sandbox", "delete", "followed", "--yes", "--json", env=env)


async def test_who_watches_keeps_nothing_from_going_idle_and_what_was_stopped_is_resumed(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    home.configure(sandbox={"idle_timeout_s": 2.0})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as airlock:
            with pytest.raises(NotFound):
                await airlock.resume_sandbox("idle")
            await airlock.write_file("idle", "/workspace/x", b"kept")
            made = await airlock.get_sandbox("idle")
            async for living in airlock.watch_sandbox_stats(interval_s=0.5):
                if not living:
                    break
            with pytest.raises(NotFound):
                await airlock.get_sandbox_stats("idle")
            idle = await airlock.get_sandbox("idle")
            assert (made.state, idle.id, idle.state) == ("running", made.id, "idle_stopped")
            assert made.stops_at is not None
            assert made.idle_since is not None
            assert made.stops_at - made.idle_since == timedelta(seconds=2)
            assert idle.stopped_since is not None
            assert idle.removes_at == idle.stopped_since + timedelta(days=1)
            assert (await airlock.resume_sandbox("idle")).id == made.id
            assert await airlock.read_file("idle", "/workspace/x") == b"kept"
            reported = home.rows("SELECT kind FROM audit_records WHERE thread = 'idle' AND kind LIKE 'sandbox%'")
            assert reported == [("sandbox_resumed",)]
            await airlock.delete_sandbox("idle")  # running, or stopped again
    assert containers_of(home.instance) == volumes_of(home.instance) == []
