"""A gateway instance whose engine is on another machine. `site`, and `machine` that it needs, are fixtures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.tls_address import TlsAddress
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Owner, Sandbox, SandboxSpec
from sandbox.tls.identity import sandbox_name
from tests.integration.sandbox import live_engine
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id
from tests.integration.sandbox.made_images import busybox, image
from tests.remote_engine import RemoteEngine, remote_engine


class Site:
    """A machine with an engine, and the processes of one gateway instance, which are on this machine."""

    def __init__(self, machine: RemoteEngine, image_name: str, channels: Path) -> None:
        self.machine = machine
        self.image = image_name
        self.channels = channels
        self.authority = channels / "authority.pem"
        self.instance = instance_id()
        self.engines: list[DockerEngine] = []

    def engine(self, *, host: str = "", listen: str = "") -> DockerEngine:
        """Return the engine of a new process."""
        made = DockerEngine(
            instance=self.instance,
            channel_root=self.channels,
            runtime_image=RUNTIME_IMAGE,
            requests=self.machine.requests(self.authority, host=host, listen=listen),
        )
        self.engines.append(made)
        return made

    def spec(self, thread: str = "t", tenant: str = "tenant-a") -> SandboxSpec:
        return dataclasses.replace(live_engine.spec(thread, tenant), image=self.image)

    def names(self) -> list[str]:
        """Return the containers and volumes of the instance there, each after what it is of."""
        mine = f"--filter=label=airlock.instance={self.instance}"
        there = self.machine.docker("ps", "-a", mine, "--format", "{{.Names}}").split()
        there += self.machine.docker("volume", "ls", "-q", mine).split()
        return sorted(name.removeprefix(f"airlock-{self.instance}-") for name in there)

    def relay(self, sandbox_id: str) -> str:
        return f"airlock-{self.instance}-relay-{sandbox_id}"

    def place(self, sandbox_id: str) -> tuple[int, int]:
        """Return the port and the epoch of a relay."""
        (found,) = json.loads(self.machine.docker("inspect", self.relay(sandbox_id)))
        (port,) = found["NetworkSettings"]["Ports"]["7600/tcp"]
        assert port["HostIp"] == self.machine.host
        return int(port["HostPort"]), int(found["Config"]["Labels"]["airlock.epoch"])

    def address(self, sandbox: Sandbox, owner: Owner, *, epoch: int, authority: Path | None = None) -> TlsAddress:
        """Return an address that claims a sandbox for an owner and an epoch, and knows the port."""
        contexts = ChannelAuthority.open(authority or self.authority, self.instance).contexts
        name = sandbox_name(self.instance, sandbox.id, owner, epoch)
        return TlsAddress(self.machine.host, self.place(sandbox.id)[0], name, contexts)


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[RemoteEngine, str]]:
    with image(busybox()) as name, remote_engine(name, RUNTIME_IMAGE) as made:
        yield made, name


@pytest_asyncio.fixture(loop_scope="module")
async def site(machine: tuple[RemoteEngine, str], tmp_path: Path) -> AsyncIterator[Site]:
    """Nothing is left of it at the end, on either machine."""
    made = Site(*machine, tmp_path / "channels")
    made.channels.mkdir(mode=0o700)
    made.machine.hide(made.channels)
    yield made
    for engine in made.engines:
        await engine.close()
    last = made.engine()
    await last.reconcile()
    for sandbox_id in await last.owned():
        await last.remove(sandbox_id)
    await last.remove_workspaces()
    await last.close()
    assert made.names() == []
    assert [one for one in made.channels.iterdir() if one != made.authority] == []
