"""A gateway whose sandbox is idle: stopped, started again by the next call, and every step of it reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.client import Client
from tests.docker_state import containers_of
from tests.gateway_process import airlock, make_home, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def states(client: Client, count: int) -> Sequence[str]:
    """Return so many of the states that the thread's sandbox had, the first ones; they are reported a moment late."""
    async with asyncio.timeout(60):
        while True:
            found = [one.state async for one in client.sandbox_transitions(thread="t")][::-1]
            if len(found) >= count:
                return found[:count]
            await asyncio.sleep(0.1)


async def test_an_idle_sandbox_is_stopped_and_resumed_and_the_next_result_says_what_ended_once(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = home.config.parent / "policies" / "default.yaml"
    policy.write_text(policy.read_text().replace("\nsandbox:", "\nsandbox:\n  idle_timeout_s: 1"))
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.start_process(["sleep", "1000"], thread="t", process_id="server")
            # On a slow machine it is idle for a second before any of these calls: whichever is next says what ended.
            calls = [await client.call_tool("execute", {"command": "echo kept > a"}, thread="t")]
            assert await states(client, 3) == ["creating", "running", "idle_stopped"]
            assert (await client.processes("t")).processes == ()
            calls += [await client.call_tool("execute", {"command": line}, thread="t") for line in ("cat a", "true")]
            assert (calls[1].content, calls[1].exit_code) == ("kept\n", 0)
            assert "".join(call.note for call in calls).count("background processes (1) ended") == 1
            assert await states(client, 4) == ["creating", "running", "idle_stopped", "running"]
            env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
            shown = json.loads(airlock("sandbox", "history", "--thread", "t", "--json", env=env).stdout)
            assert len({one["sandbox_id"] for one in shown["transitions"]}) == 1
            reasons = {one["reason"] for one in shown["transitions"]}
            assert "idle; its background processes (1) ended" in reasons
            assert "idle_stopped" in airlock("sandbox", "history", env=env).stdout
    assert containers_of(home.instance) == [], "with the last gateway goes what is stopped, too"


async def test_what_ended_is_said_to_the_first_command_also_after_another_stop_a_file_call_and_a_restart(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"idle_timeout_s": 1, "on_stop": "keep", "keep_workspaces": True})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            await client.start_process(["sleep", "1000"], thread="t", process_id="server")
            assert (await states(client, 3))[-1] == "idle_stopped"
            await client.write_file("t", "/workspace/a", b"kept\n")
            assert (await states(client, 5))[3:] == ["running", "idle_stopped"]
            await client.write_file("t", "/workspace/b", b"")
    home.configure(sandbox={"idle_timeout_s": 600, "on_stop": "remove", "keep_workspaces": False})
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client:
            first, second = [await client.call_tool("execute", {"command": "cat a"}, thread="t") for _ in range(2)]
            assert first.content == second.content == "kept\n"
            assert first.note == (
                "[the sandbox was stopped before this call: its background processes (1) ended, and /tmp was emptied]"
            )
            assert second.note == ""
    assert containers_of(home.instance) == []
