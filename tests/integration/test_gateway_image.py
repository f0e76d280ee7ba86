"""The gateway image, run as compose.yaml runs it: the engine's socket, a channel directory, hardly any powers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from testcontainers.core.container import DockerContainer

from gateway.client import Client
from gateway.errors import Unavailable
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home

_PORT = 7443
_READY_S = 60


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Home, str]]:
    home = make_home(tmp_path / "home")
    directory = str(home.config.parent)
    container = (
        DockerContainer("airlock-gateway")
        .with_volume_mapping("/var/run/docker.sock", "/var/run/docker.sock", "rw")
        .with_volume_mapping(directory, directory, "rw")
        .with_env("AIRLOCK_CHANNEL_DIR", f"{directory}/channels")
        .with_tmpfs_mount("/tmp")
        .with_exposed_ports(_PORT)
        .with_command(["serve", "--config", str(home.config), "--listen", f"0.0.0.0:{_PORT}", "--insecure-plaintext"])
        .with_kwargs(
            user="0:0",
            read_only=True,
            cap_drop=["ALL"],
            cap_add=["CHOWN", "DAC_OVERRIDE"],
            security_opt=["no-new-privileges"],
            labels={"airlock.kind": "test"},
        )
    )
    with container:
        yield home, f"127.0.0.1:{container.get_exposed_port(_PORT)}"
        container.get_wrapped_container().stop(timeout=30)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_the_gateway_image_makes_sandboxes_beside_itself(served: tuple[Home, str]) -> None:
    home, address = served
    deadline = time.monotonic() + _READY_S
    async with Client(address, home.key) as airlock:
        while True:
            try:
                await airlock.list_tools()
                break
            except Unavailable:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        result = await airlock.call_tool("execute", {"command": "id -u; cat /proc/1/comm"}, thread="t")
        assert result.exit_code == 0, result
        assert int(result.stdout.splitlines()[0]) > 600_000_000
        await airlock.write_file("t", "/workspace/a", b"a")
        assert await airlock.read_file("t", "/workspace/a") == b"a"
