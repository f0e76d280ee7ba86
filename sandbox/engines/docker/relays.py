"""Relays: channels of an engine on another machine, over TCP with mutual TLS (docs/channel.md).

Beside each sandbox that runs is a container of the runtime image with the relay (sandbox/tls). The two share a volume
in memory for the socket, and nothing else. The relay's port is published on the engine's host. A relay is made anew for
each start of its sandbox, with a certificate for that start alone, and the engine itself knows where it is: which port,
and which epoch, in a label. So each process of the gateway finds it.
"""

import asyncio
import errno
import io
import tarfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from socket import socket
from typing import TYPE_CHECKING, Any

from sandbox.client.channel import Channel
from sandbox.client.tls_address import TlsAddress
from sandbox.client.unix_address import SOCKET_NAME
from sandbox.engines.containment import CHANNEL_DIRECTORY
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.channels import Opening
from sandbox.engines.docker.docker_requests import Client, DockerRequests
from sandbox.engines.docker.engine_address import RelaySite
from sandbox.errors import DaemonLost, SandboxUnavailable
from sandbox.sandbox import Owner
from sandbox.tls.identity import gateway_name, pooled_name, sandbox_name

if TYPE_CHECKING:
    from sandbox.client.channel_authority import ChannelAuthority

_EPOCH_LABEL = "airlock.epoch"
_PORT = 7600
# Of the relay and of the directory with the socket. Below the users of sandboxes; no process in one has it but pid 1.
_RELAY_USER = 599_999_998
# That of the bundle's directory (Dockerfile).
_BUNDLE_GROUP = 599_999_999
_KEYS = "/keys"
# The relay takes 20 MiB, and its buffers and the kernel's of each connection that is busy.
_MEMORY_BYTES = 128 * 1024 * 1024
_DESCRIPTORS = 4096
# In memory, for one socket: the daemon in a sandbox can neither fill a disk of the engine with it, nor hide files.
_SOCKET_VOLUME = f"size=64k,nr_inodes=16,mode=770,uid=0,gid={_RELAY_USER},nosuid,nodev,noexec"
# Between two tries to reach a daemon that does not listen yet: each costs both ends a handshake.
_RETRY_S = 0.02


@dataclass(frozen=True)
class _Place:
    port: int
    epoch: int


@dataclass
class _RelayAddress:
    """Satisfies Address: the relay of a sandbox, looked up when it is first opened; `begun` is its start here."""

    relays: "Relays"
    owner: Owner | None
    sandbox_id: str
    begun: asyncio.Future[_Place] | None = None
    found: TlsAddress | None = None

    async def open(self) -> socket:
        try:
            if self.found is None:
                looking = self.relays.place(self.sandbox_id) if self.begun is None else asyncio.shield(self.begun)
                self.found = self.relays.address(self.owner, self.sandbox_id, await looking)
            return await self.found.open()
        except ConnectionError as error:
            # The engine's host may accept a connection before the relay does, and then cuts it.
            await asyncio.sleep(_RETRY_S)
            raise ConnectionRefusedError(errno.ECONNREFUSED, self.relays.unreachable(error)) from error
        except OSError as error:
            raise OSError(error.errno or errno.ETIMEDOUT, self.relays.unreachable(error)) from error

    def close(self) -> None:
        """Connections end with their users; nothing else is kept."""


class Relays:
    """Satisfies Channels. `runtime` returns the image of the runtime on this engine, and its command."""

    group = _RELAY_USER

    def __init__(
        self,
        requests: DockerRequests,
        instance: str,
        site: RelaySite,
        runtime: Callable[[], Awaitable[config.Runtime]],
    ) -> None:
        self._requests = requests
        self._instance = instance
        self._site = site
        self._runtime = runtime
        self._unclaimed: dict[str, _Place] = {}

    @cached_property
    def _authority(self) -> "ChannelAuthority":
        from sandbox.client.channel_authority import ChannelAuthority  # noqa: PLC0415 - cryptography is slow to import

        try:
            return ChannelAuthority.open(self._site.authority, self._instance)
        except (OSError, ValueError) as error:
            raise SandboxUnavailable(f"the key that signs for the channels cannot be used: {error}") from error

    def mount(self, sandbox_id: str) -> dict[str, Any]:
        options = {"type": "tmpfs", "device": "tmpfs", "o": _SOCKET_VOLUME}
        labels = {**self._labels(sandbox_id), config.KIND_LABEL: "channel"}
        return config.volume_mount(
            self._volume(sandbox_id),
            CHANNEL_DIRECTORY,
            {"NoCopy": True, "Labels": labels, "DriverConfig": {"Name": "local", "Options": options}},
        )

    def begin(self, owner: Owner | None, sandbox_id: str, *, again: bool = False) -> Opening:  # noqa: ARG002 - each is made anew
        starting = asyncio.ensure_future(self._started(owner, sandbox_id))
        return Opening(Channel(_RelayAddress(self, owner, sandbox_id, starting)), starting)

    def to(self, owner: Owner, sandbox_id: str) -> Channel:
        return Channel(_RelayAddress(self, owner, sandbox_id))

    async def claimed(self, owner: Owner, sandbox_id: str, channel: Channel) -> Channel:
        place = self._unclaimed.pop(sandbox_id)
        identity = self._authority.sandbox_identity(self._name(owner, sandbox_id, place.epoch))
        try:
            await self.address(None, sandbox_id, place).claim(sandbox_id, identity)
        except OSError as error:
            raise DaemonLost(self.unreachable(error)) from error
        channel.close()  # under the name that it had, nothing answers any more
        return Channel(_RelayAddress(self, owner, sandbox_id, found=self.address(owner, sandbox_id, place)))

    async def stopped(self, sandbox_id: str) -> None:
        await self._requests.ask(docker_requests.remove_container, self._container(sandbox_id))

    async def remove(self, sandbox_id: str) -> None:
        self._unclaimed.pop(sandbox_id, None)
        await self.stopped(sandbox_id)
        await self._requests.ask(docker_requests.remove_volume, self._volume(sandbox_id))

    async def left(self) -> Collection[str]:
        mine = {config.INSTANCE_LABEL: self._instance}
        containers = await self._requests.ask(docker_requests.list_containers, {**mine, config.KIND_LABEL: "relay"})
        volumes = await self._requests.ask(docker_requests.labelled_volumes, {**mine, config.KIND_LABEL: "channel"})
        every = (*(container["Labels"] for container in containers), *volumes.values())
        return {labels[config.SANDBOX_LABEL] for labels in every}

    # --- where a relay is ---

    def address(self, owner: Owner | None, sandbox_id: str, place: _Place) -> TlsAddress:
        name = self._name(owner, sandbox_id, place.epoch)
        return TlsAddress(self._site.host, place.port, name, self._authority.contexts)

    async def place(self, sandbox_id: str) -> _Place:
        """Return where the relay of a sandbox is; ConnectionRefusedError where none runs."""
        for found in await self._requests.ask(docker_requests.named_containers, [self._container(sandbox_id)]):
            ports = [port["PublicPort"] for port in found.get("Ports") or () if "PublicPort" in port]
            if ports:
                return _Place(int(ports[0]), int(found["Labels"][_EPOCH_LABEL]))
        raise ConnectionRefusedError("the relay of the sandbox does not run")

    def unreachable(self, error: OSError) -> str:
        """Return why a relay was not reached, and what to do where none is."""
        return (
            f"the relay of the sandbox at {self._site.host} does not answer ({error.strerror or error or 'in time'}); "
            "where none does, let this machine connect to that one's ephemeral ports, or set sandbox.channel_host to "
            "the address at which it reaches them"
        )

    # --- how it comes up ---

    async def _started(self, owner: Owner | None, sandbox_id: str) -> _Place:
        epoch = time.time_ns()
        identity = self._authority.sandbox_identity(self._name(owner, sandbox_id, epoch))
        keys = _archive({"identity.pem": identity, "ca.pem": self._authority.ca_pem.encode("ascii")})
        body = self._body(await self._runtime(), owner, sandbox_id, epoch)
        try:
            await self._requests.ask(_start, body, self._container(sandbox_id), keys)
        except SandboxUnavailable as error:
            raise SandboxUnavailable(
                f"the relay of the sandbox did not start on the engine's host: {error}; sandbox.channel_listen, which "
                f"is {self._site.listen}, must be an address of that machine, and its engine have the network `bridge`"
            ) from error
        place = await self.place(sandbox_id)
        if owner is None:
            self._unclaimed[sandbox_id] = place
        return place

    def _body(self, runtime: config.Runtime, owner: Owner | None, sandbox_id: str, epoch: int) -> dict[str, Any]:
        """Return the configuration of a relay's container. Nothing of the tenant's runs in it."""
        *python, _ = runtime.command
        port = f"{_PORT}/tcp"
        options = {
            "--listen": f"0.0.0.0:{_PORT}",
            "--socket": f"{CHANNEL_DIRECTORY}/{SOCKET_NAME}",
            "--identity": f"{_KEYS}/identity.pem",
            "--authority": f"{_KEYS}/ca.pem",
            "--gateway": gateway_name(self._instance),
        }
        return {
            "Image": runtime.image,
            "Entrypoint": [*python, "sandbox.tls", *(word for pair in options.items() for word in pair)],
            "Cmd": ["--pooled", sandbox_id] if owner is None else [],
            "User": f"{_RELAY_USER}:{_RELAY_USER}",
            "Hostname": "relay",
            "ExposedPorts": {port: {}},
            "Labels": {**self._labels(sandbox_id), config.KIND_LABEL: "relay", _EPOCH_LABEL: str(epoch)},
            "HostConfig": {
                **config.WALLS,
                # Its keys are in its own layer, which goes with it. No file there is its user's.
                "ReadonlyRootfs": False,
                "Init": False,
                "NetworkMode": "bridge",
                "IpcMode": "none",
                "PortBindings": {port: [{"HostIp": self._site.listen, "HostPort": ""}]},
                "GroupAdd": [str(_BUNDLE_GROUP)],
                "Mounts": [self.mount(sandbox_id)],
                "Memory": _MEMORY_BYTES,
                "MemorySwap": _MEMORY_BYTES,
                "NanoCpus": 2_000_000_000,
                "PidsLimit": 8,
                "Ulimits": [{"Name": "nofile", "Soft": _DESCRIPTORS, "Hard": _DESCRIPTORS}],
            },
        }

    def _labels(self, sandbox_id: str) -> Mapping[str, str]:
        return {config.INSTANCE_LABEL: self._instance, config.SANDBOX_LABEL: sandbox_id}

    def _name(self, owner: Owner | None, sandbox_id: str, epoch: int) -> str:
        if owner is None:
            return pooled_name(self._instance, sandbox_id)
        return sandbox_name(self._instance, sandbox_id, owner, epoch)

    def _container(self, sandbox_id: str) -> str:
        return config.container_name(self._instance, f"relay-{sandbox_id}")

    def _volume(self, sandbox_id: str) -> str:
        return config.container_name(self._instance, f"channel-{sandbox_id}")


def _start(client: Client, body: dict[str, Any], name: str, keys: bytes) -> None:
    docker_requests.remove_container(client, name)  # that of an earlier start
    docker_requests.create_container(client, body, name)
    client.put_archive(name, "/", keys)
    client.start(name)


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar stream of the directory of keys, which the relay's user alone can read."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        directory = tarfile.TarInfo(_KEYS.lstrip("/"))
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(directory)
        for name, content in files.items():
            file = tarfile.TarInfo(f"{directory.name}/{name}")
            file.size, file.mode, file.uid = len(content), 0o400, _RELAY_USER
            tar.addfile(file, io.BytesIO(content))
    return packed.getvalue()
