"""Containers: those of one gateway instance, each with its channel directory."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sandbox.client.channel import SOCKET_NAME, Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.owner import Owner
from sandbox.sandbox import ListedSandbox
from sandbox.usage import Usage, usage_of

Container = Mapping[str, Any]
"""A container as GET /containers/json shows it."""


class Containers:
    """Containers by the ids of their sandboxes. Raises as DockerRequests.ask()."""

    def __init__(self, requests: DockerRequests, instance: str, channel_root: Path) -> None:
        self._requests = requests
        self._instance = instance
        self._channel_root = channel_root

    def name(self, sandbox_id: str) -> str:
        return config.container_name(self._instance, sandbox_id)

    async def start(self, sandbox_id: str, body: dict[str, Any], *, image: str) -> None:
        """Create and start a container; raises as docker_requests.start_container()."""
        await self._requests.ask(docker_requests.start_container, body, self.name(sandbox_id), image=image)

    async def start_again(self, sandbox_id: str) -> None:
        await self._requests.ask(docker_requests.start_again, self.name(sandbox_id))

    async def stop(self, sandbox_id: str) -> None:
        """Kill what runs in a container, which stays."""
        await self._requests.ask(docker_requests.stop_container, self.name(sandbox_id))

    async def state(self, sandbox_id: str) -> dict[str, Any]:
        return await self._requests.ask(docker_requests.container_state, self.name(sandbox_id))

    async def remove(self, sandbox_id: str) -> None:
        """Remove a container and its channel directory. One that is gone is no error."""
        await self._requests.ask(docker_requests.remove_container, self.name(sandbox_id))
        directory = self._channel_root / sandbox_id
        await self._requests.threads.run(lambda: shutil.rmtree(directory, ignore_errors=True))

    async def remove_each(self, found: Collection[Container]) -> None:
        """Remove containers of any kind, and no channel directories."""
        for container in found:
            await self._requests.ask(docker_requests.remove_container, container["Id"])

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        stats = await self._requests.ask(docker_requests.container_stats, self.name(sandbox.id))
        if stats is None:
            return None
        found = usage_of(stats)
        if sandbox.runtime == "runc":
            return found
        # Run with --ignore-cgroups, gVisor is in the host's own group: it limits no processes, and its counts are of
        # more than the tenant's. In a group of its own, most of what counts as processes are threads of its kernel.
        return Usage() if found.pids_limit is None else dataclasses.replace(found, pids=None, pids_limit=None)

    async def labelled(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return await self._requests.ask(
            docker_requests.list_containers, {config.INSTANCE_LABEL: self._instance, **labels}
        )

    async def of_kind(self, kind: str, owner: Owner | None = None) -> list[dict[str, Any]]:
        labels = {} if owner is None else config.owner_labels(self._instance, owner)
        return await self.labelled({config.KIND_LABEL: kind, **labels})

    async def named(self, sandbox_ids: Collection[str]) -> list[dict[str, Any]]:
        names = [self.name(sandbox_id) for sandbox_id in sandbox_ids]
        return await self._requests.ask(docker_requests.named_containers, names) if names else []

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this instance runs, by its id, pooled ones too."""
        return {id_of(one): one["State"] == "running" for one in await self.of_kind("sandbox")}

    def channel(self, sandbox_id: str) -> Channel:
        return Channel(self._channel_root / sandbox_id)

    def make_channel(self, sandbox_id: str) -> Channel:
        """Return the channel to a new sandbox, in a directory made for it."""
        self._channel_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self._channel_root / sandbox_id
        directory.mkdir()
        # Root in the container has no power over files of other users, so it enters by the gateway's group.
        os.chown(directory, -1, os.getgid())
        directory.chmod(0o770)
        return Channel(directory)

    def remove_socket(self, sandbox_id: str) -> None:
        """Remove the socket of a daemon that has ended: a channel keeps to the first one that it sees."""
        (self._channel_root / sandbox_id / SOCKET_NAME).unlink(missing_ok=True)


def id_of(container: Container) -> str:
    """Return the id of a container's sandbox."""
    return str(container["Labels"][config.SANDBOX_LABEL])
