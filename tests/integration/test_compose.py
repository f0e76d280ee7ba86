"""The gateway and its way to the engine, run as compose.yaml says, without Compose: it may not be on this machine.

The database is not run here, for its image is a registry's; the gateway has SQLite in its place. What stands in the
file on who may what, and the commands of its health checks, is taken from it word by word.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.client import Client
from tests.docker_state import containers_of, volumes_of

FILE = Path(__file__).parents[2] / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
IMAGE = os.environ.get("AIRLOCK_GATEWAY_IMAGE", "airlock-gateway")
_HEALTHY_S = 120


class Composed:
    """Two services and their volumes under a name of their own; `channels` stands for /run/airlock of the host."""

    def __init__(self, channels: Path) -> None:
        self.name = f"airlock-composed-{secrets.token_hex(4)}"
        self.channels = channels

    def docker(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def options(self, name: str) -> list[str]:
        """Return what of a service is an option of `docker run`."""
        service = SERVICES[name]
        said = ["--label", "airlock.kind=test", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
        said += ["--read-only"] if service["read_only"] else []
        said += ["--user", service["user"]] if "user" in service else []
        said += ["--network", service["network_mode"]] if "network_mode" in service else []
        for capability in service.get("cap_add", []):
            said += ["--cap-add", capability]
        for place in service.get("tmpfs", []):
            said += ["--tmpfs", place]
        for volume in service["volumes"]:
            source, target = volume.split(":")
            own = source if source.startswith("/") else f"{self.name}-{source}"
            said += ["--volume", self.here(f"{own}:{target}")]
        for variable, value in service.get("environment", {}).items():
            said += ["--env", f"{variable}={value or ''}"]
        return [*said, "--env", f"AIRLOCK_CHANNEL_DIR={self.channels}"]

    def here(self, text: str) -> str:
        return text.replace("/run/airlock", str(self.channels))

    def start(self, name: str, *more: str) -> None:
        command = [self.here(word) for word in SERVICES[name]["command"]]
        self.docker("run", "--detach", "--name", f"{self.name}.{name}", *self.options(name), *more, IMAGE, *command)
        check = SERVICES[name]["healthcheck"]["test"][1:]
        deadline = time.monotonic() + _HEALTHY_S
        while subprocess.run(
            ["docker", "exec", f"{self.name}.{name}", *check], check=False, capture_output=True
        ).returncode:
            log = subprocess.run(["docker", "logs", f"{self.name}.{name}"], check=False, capture_output=True, text=True)
            assert time.monotonic() < deadline, log
            assert self.docker("inspect", "-f", "{{.State.Running}}", f"{self.name}.{name}") == "true", log

    def remove(self) -> None:
        for name in ("gateway", "engine"):
            self.docker("stop", "--time", "40", f"{self.name}.{name}", check=False)
            self.docker("rm", "--force", "--volumes", f"{self.name}.{name}", check=False)
        for volume in ("state", "engine"):
            self.docker("volume", "rm", f"{self.name}-{volume}", check=False)


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    # Beside the others' directories: the engine's user 10000 has to come through to it.
    channels = Path("/run") / f"airlock-test-{secrets.token_hex(4)}"
    channels.mkdir()
    made = Composed(channels)
    try:
        yield made
    finally:
        made.remove()
        left = sorted(channels.iterdir())
        subprocess.run(["rm", "-rf", str(channels)], check=True)
    assert [path for path in left if path.is_dir()] == []


async def test_a_gateway_without_any_power_works_behind_the_proxy(composed: Composed) -> None:
    init = ["run", "--rm", *composed.options("gateway"), IMAGE, "init", "/var/lib/airlock/home", "--json"]
    key = json.loads(composed.docker(*init))["key"]
    composed.start("engine")
    composed.start("gateway", "--publish", "127.0.0.1:0:7443")
    container = f"{composed.name}.gateway"
    try:
        address = composed.docker("port", container, "7443").splitlines()[0]
        async with Client(address, key) as airlock:
            result = await airlock.call_tool("execute", {"command": "id -u; cat /proc/1/comm"}, thread="t")
            assert result.exit_code == 0, result
            assert int(result.stdout.splitlines()[0]) > 600_000_000
            await airlock.write_file("t", "/workspace/a", b"a")
            assert await airlock.read_file("t", "/workspace/a") == b"a"
    finally:
        instance = composed.docker("exec", container, "cat", "/var/lib/airlock/home/state/instance")
        composed.docker("stop", "--time", "40", container)
        for volume in volumes_of(instance):
            composed.docker("volume", "rm", volume)
    assert containers_of(instance) == []


def test_the_gateway_s_own_powers_are_none(composed: Composed) -> None:
    composed.start("engine")
    look = ["run", "--rm", "--entrypoint", "python3", *composed.options("gateway"), IMAGE, "-c"]
    said = composed.docker(
        *look,
        "import os; print(os.getuid(), os.path.exists('/var/run/docker.sock'), "
        "[line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')])",
    )
    assert said == "10000 False ['0000000000000000']"
