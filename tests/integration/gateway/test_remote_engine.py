"""A gateway whose engine is on another machine, as an operator configures it, and what `airlock doctor` says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.client import Client
from tests.gateway_process import Home, airlock_process, make_home, served
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE
from tests.integration.sandbox.made_images import busybox, image
from tests.remote_engine import RemoteEngine, remote_engine


@pytest.fixture(scope="module")
def machine() -> Iterator[RemoteEngine]:
    with image(busybox()) as name, remote_engine(name, RUNTIME_IMAGE) as made:
        made.docker("tag", name, "airlock-sandbox")  # by which the starter policy and doctor know them
        made.docker("tag", RUNTIME_IMAGE, "airlock-runtime")
        yield made


@pytest.fixture
def home(machine: RemoteEngine, tmp_path: Path) -> Home:
    made = make_home(tmp_path)
    made.configure(sandbox={"engine_url": machine.address, "pool_limit": 1, "pool_min": 1})
    return made


def doctor(home: Home, env: dict[str, str]) -> dict[str, dict[str, Any]]:
    said = airlock_process("doctor", "--config", str(home.config), "--json", env=env, check=False).stdout
    return {one["what"]: one for one in json.loads(said)["findings"]}


async def test_a_gateway_serves_from_another_machine_and_finds_its_sandboxes_again_when_it_was_killed(
    machine: RemoteEngine, home: Home
) -> None:
    with served(home, machine.environment) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.write_file("t", "/workspace/a", b"1")
            made = await client.get_sandbox("t")
        gateway.kill()
    with served(home, machine.environment) as gateway:
        async with Client(gateway.address, home.key) as client:
            done = await client.call_tool("execute", {"command": "cat /workspace/a"}, thread="t")
            assert (done.outcome, done.content) == ("exited", "1")
            assert (await client.get_sandbox("t")).id == made.id
            snapshot = await client.create_snapshot("t")
            await client.write_file("t", "/workspace/a", b"2")
            await client.restore_snapshot(snapshot.id)
            assert await client.read_file("t", "/workspace/a") == b"1"
    assert machine.docker("ps", "-aq") == ""
    assert [name for name in machine.docker("volume", "ls", "-q").split() if "runtime" not in name] == []


async def test_doctor_tries_a_sandbox_there_or_says_what_keeps_it_from_that(machine: RemoteEngine, home: Home) -> None:
    found = await asyncio.to_thread(doctor, home, machine.environment)
    assert {
        what: one["state"] for what, one in found.items() if what in ("engine", "sandbox", "channel", "reserve")
    } == {
        "engine": "ok",
        "sandbox": "ok",
        "channel": "ok",
        "reserve": "ok",
    }, found
    assert found["landlock"]["state"] in ("ok", "warning")
    without = await asyncio.to_thread(doctor, home, {})
    assert "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH" in without["engine"]["fix"]
    home.configure(sandbox={"channel_listen": "203.0.113.1"})
    wrong = await asyncio.to_thread(doctor, home, machine.environment)
    assert "sandbox.channel_listen, which is 203.0.113.1, must be" in wrong["sandbox"]["fix"]
    home.configure(sandbox={"channel_host": "engine.invalid", "channel_listen": None})
    unknown = await asyncio.to_thread(doctor, home, machine.environment)
    assert unknown["engine"]["detail"] == "is on another machine, half configured"
    assert "sandbox.channel_listen is not set" in unknown["engine"]["fix"]
    assert machine.docker("ps", "-aq") == ""
