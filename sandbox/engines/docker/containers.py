"""Containers: those of one gateway instance, each with its channel directory."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sandbox.client.channel import SOCKET_NAME, Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import Client, DockerRequests
from sandbox.sandbox import ListedSandbox, Owner
from sandbox.usage import Usage, usage_of

_Value = TypeVar("_Value")
Container = Mapping[str, Any]
"""A container as GET /containers/json shows it."""


@dataclass(frozen=True)
class Containers:
    """Containers by the ids of their sandboxes. Raises as DockerRequests.ask()."""

    requests: DockerRequests
    instance: str
    channel_root: Path

    def name(self, sandbox_id: str) -> str:
        return config.container_name(self.instance, sandbox_id)

    async def ask(self, request: Callable[[Client, str], _Value], sandbox_id: str) -> _Value:
        """Make a request that takes a container's name."""
        return await self.requests.ask(request, self.name(sandbox_id))

    async def remove(self, sandbox_id: str) -> None:
        """Remove a container and its channel directory. One that is gone is no error."""
        await self.ask(docker_requests.remove_container, sandbox_id)
        directory = self.channel_root / sandbox_id
        await self.requests.threads.requests.begin(lambda: shutil.rmtree(directory, ignore_errors=True))

    async def remove_each(self, found: Collection[Container]) -> None:
        """Remove containers of any kind, and no channel directories."""
        for container in found:
            await self.requests.ask(docker_requests.remove_container, container["Id"])

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        stats = await self.ask(docker_requests.container_stats, sandbox.id)
        if stats is None:
            return None
        found = usage_of(stats)
        if sandbox.runtime == "runc":
            return found
        # Run with --ignore-cgroups, gVisor is in the host's own group: it limits no processes, and its counts are of
        # more than the tenant's. In a group of its own, most of what counts as processes are threads of its kernel.
        return Usage() if found.pids_limit is None else replace(found, pids=None, pids_limit=None)

    async def labelled(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return await self.requests.ask(
            docker_requests.list_containers, {config.INSTANCE_LABEL: self.instance, **labels}
        )

    async def of_kind(self, kind: str, owner: Owner | None = None) -> list[dict[str, Any]]:
        labels = {} if owner is None else config.owner_labels(self.instance, owner)
        return await self.labelled({config.KIND_LABEL: kind, **labels})

    async def named(self, sandbox_ids: Collection[str]) -> list[dict[str, Any]]:
        names = [self.name(sandbox_id) for sandbox_id in sandbox_ids]
        return await self.requests.ask(docker_requests.named_containers, names) if names else []

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this instance runs, by its id, pooled ones too."""
        return {id_of(one): one["State"] == "running" for one in await self.of_kind("sandbox")}

    def channel(self, sandbox_id: str) -> Channel:
        return Channel(self.channel_root / sandbox_id)

    def make_channel(self, sandbox_id: str) -> Channel:
        """Return the channel to a new sandbox, in a directory made for it."""
        self.channel_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self.channel_root / sandbox_id
        directory.mkdir()
        # Root in the container has no power over files of other users, so it enters by the gateway's group.
        os.chown(directory, -1, os.getgid())
        directory.chmod(0o770)
        return Channel(directory)

    def remove_socket(self, sandbox_id: str) -> None:
        """Remove the socket of a daemon that has ended: a channel keeps to the first one that it sees."""
        (self.channel_root / sandbox_id / SOCKET_NAME).unlink(missing_ok=True)


def id_of(container: Container) -> str:
    """Return the id of a container's sandbox."""
    return str(container["Labels"][config.SANDBOX_LABEL])
