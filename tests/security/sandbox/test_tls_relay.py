"""The relay of a real sandbox, in a container of its own: who reaches it, and what tool code beside it can do.

The relay's network is also that of a container with tool code's part, as the containers of a pod share theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.client.channel import Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.tls_address import TlsAddress
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox
from sandbox.tls.identity import gateway_name, sandbox_name
from tests.integration.sandbox.live_engine import IMAGE, RUNTIME_IMAGE, instance_id, removed, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORT = 7600
# What comes of a connection: nothing, or its end at once.
KNOCK = """
import socket, sys
for host in sys.argv[1:]:
    try:
        with socket.create_connection((host, 7600), 1) as made:
            print(host, made.recv(1))
    except OSError:
        print(host, b"")
"""
# As many connections as eight processes can make, each kept as long as it lasts.
HAMMER = """
import os, socket, sys
for _ in range(3):
    os.fork()
print("hammering", flush=True)
kept = []
while True:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((sys.argv[1], 7600))
    kept.append(made)
    del kept[:-100]
"""


def docker(*arguments: str) -> str:
    return subprocess.run(("docker", *arguments), check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Placed:
    """A sandbox, reached by its relay; `relay` is the container of that."""

    direct: Sandbox
    remote: ChannelSandbox
    relay: str
    address: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def placed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Placed]:
    instance, root, keys = instance_id(), tmp_path_factory.mktemp("channels"), tmp_path_factory.mktemp("keys")
    authority = ChannelAuthority.open(tmp_path_factory.mktemp("authority") / "channels.pem", instance)
    engine = DockerEngine(instance=instance, channel_root=root, runtime_image=RUNTIME_IMAGE)
    direct = await engine.create(spec("remote"))
    name = sandbox_name(instance, direct.id, ("tenant-a", "remote"), 1)
    (keys / "identity.pem").write_bytes(authority.sandbox_identity(name))
    (keys / "ca.pem").write_text(authority.ca_pem)
    relay = await asyncio.to_thread(_started, instance, root / direct.id, keys)
    try:
        (settings,) = json.loads(await asyncio.to_thread(docker, "inspect", relay))
        address = settings["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
        with closing(Channel(TlsAddress(address, PORT, name, authority.contexts))) as channel:
            async with asyncio.timeout(20):
                while True:
                    try:
                        await channel.connect()
                        break
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.05)
            posture = (await channel.hello(timeout_s=5)).posture
            yield Placed(direct, ChannelSandbox(direct.id, direct.spec, channel, posture), relay, address)
    finally:
        await asyncio.to_thread(docker, "rm", "--force", relay)
        await removed(engine, instance)


def _started(instance: str, channel: Path, keys: Path) -> str:
    (label,) = json.loads(
        docker("image", "inspect", "--format", '[{{index .Config.Labels "airlock.command"}}]', RUNTIME_IMAGE)
    )
    for file in keys.iterdir():
        os.chown(file, -1, os.getgid())
        file.chmod(0o640)
    keys.chmod(0o750)
    return docker(
        *("run", "--detach", "--network", "bridge", "--read-only", "--cap-drop", "ALL", "--log-driver", "none"),
        *("--security-opt", "no-new-privileges", "--memory", "96m", "--pids-limit", "16"),
        # The group of the bundle's directory, and that of the socket.
        *("--user", f"10003:{os.getgid()}", "--group-add", "599999999", "--label", f"airlock.instance={instance}"),
        *("--volume", f"{channel}:/run/airlock", "--volume", f"{keys}:/keys:ro", "--entrypoint", label[0]),
        *(RUNTIME_IMAGE, *label[1:-1], "sandbox.tls", "--listen", f"0.0.0.0:{PORT}"),
        *("--socket", "/run/airlock/daemon.sock", "--gateway", gateway_name(instance)),
        *("--identity", "/keys/identity.pem", "--authority", "/keys/ca.pem"),
    )


async def test_a_sandbox_is_used_through_the_relay_as_it_is_directly(placed: Placed) -> None:
    assert placed.remote.posture == placed.direct.posture
    await placed.remote.files.write("/workspace/there", b"and back")
    result = await run(placed.remote.shell, "cat there; id -u")
    assert text(result) == text(await run(placed.direct.shell, "cat there; id -u"))
    assert text(result).startswith("and back")


async def test_what_is_in_the_relays_own_network_is_not_served(placed: Placed) -> None:
    said = await asyncio.to_thread(docker, *_beside(placed, "--rm"), "-c", KNOCK, "127.0.0.1", placed.address)
    assert said.splitlines() == ["127.0.0.1 b''", f"{placed.address} b''"]


async def test_tool_code_that_hammers_at_the_port_does_not_keep_the_gateway_out(placed: Placed) -> None:
    hammer = await asyncio.to_thread(docker, *_beside(placed, "--detach"), "-c", HAMMER, placed.address)
    try:
        while "hammering" not in await asyncio.to_thread(docker, "logs", hammer):
            await asyncio.sleep(0.1)
        for _ in range(20):
            (await placed.remote.channel._address.open()).close()
    finally:
        await asyncio.to_thread(docker, "rm", "--force", hammer)


def _beside(placed: Placed, *options: str) -> tuple[str, ...]:
    """Return the start of a command that runs Python in the relay's network."""
    network = f"container:{placed.relay}"
    return ("run", *options, "--network", network, "--cap-drop", "ALL", "--cpus", "1", "--entrypoint", "python3", IMAGE)


async def test_tool_code_sees_neither_the_relays_keys_nor_its_processes(placed: Placed) -> None:
    for shell in (placed.direct.shell, placed.remote.shell):
        seen = text(
            await run(shell, "ls /keys 2>&1; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; cat /proc/net/tcp")
        )
        assert "No such file" in seen
        assert "sandbox.tls" not in seen
        assert f":{PORT:04X}" not in seen
