"""WorkspaceClaims: which volume has a thread's files.

It is the volume of the thread's own name, unless the thread took a sandbox from the pool: the mounts of a container
cannot change, so its files stay in the volume that the spare was made with, and a **claim** tells whose they are. A
claim is an empty volume of the thread's name with one label more, which names the spare. The engine makes a volume of a
name once, whoever asks at the same time, and keeps it over its own crash.

    airlock-i-workspace-<thread>      tenant, thread, held=pool-1f0e...     the claim; nothing is ever written to it
    airlock-i-workspace-pool-1f0e...  pool=pool-1f0e...                     the files

What holds the files goes first and the claim last, so that whatever is left of a thread still counts as its tenant's.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.docker import container_config as config
from sandbox.docker import docker_requests
from sandbox.docker.docker_requests import DockerRequests
from sandbox.docker.volume_emptying import empty_volume
from sandbox.owner import Owner


class WorkspaceClaims:
    """The claims of one gateway instance. Whoever changes a thread's is behind the gate of its ThreadLock."""

    def __init__(self, requests: DockerRequests, instance: str, runtime_image: str) -> None:
        self._requests = requests
        self._instance = instance
        self._runtime_image = runtime_image

    async def held_by(self, owner: Owner) -> str:
        """Return the id of the spare whose volume has a thread's files; "" where it is the thread's own."""
        labels = await self._requests.ask(docker_requests.volume_labels, self._volume(owner))
        return "" if labels is None else labels.get(config.HELD_LABEL, "")

    async def owners(self) -> Mapping[str, Owner]:
        """Return whose each spare is that was claimed, by its id."""
        return await self._owners({config.HELD_LABEL: ""})

    async def owner_of(self, spare: str) -> Owner | None:
        """Return whose a spare is; None for nobody's."""
        return (await self._owners({config.HELD_LABEL: spare})).get(spare)

    async def of_tenant(self, tenant: str) -> Mapping[str, Owner]:
        """Return what a tenant, a digest, has of the pool."""
        return await self._owners({config.HELD_LABEL: "", config.TENANT_LABEL: tenant})

    async def take(self, owner: Owner, spare: str) -> bool:
        """Give a spare's volume to a thread; False where the thread has a workspace already."""
        labels = {
            config.INSTANCE_LABEL: self._instance,
            config.TENANT_LABEL: owner[0],
            config.THREAD_LABEL: owner[1],
            config.KIND_LABEL: "workspace",
            config.HELD_LABEL: spare,
        }
        there = await self._requests.ask(docker_requests.make_volume, self._volume(owner), labels)
        return there.get(config.HELD_LABEL) == spare

    async def give_back(self, owner: Owner, spare: str) -> None:
        """Remove a spare's volume, and the claim to it if there is one; its container must be gone."""
        await self._requests.remove_volume(config.spare_volume(self._instance, spare), tenant=owner[0])
        if await self.held_by(owner) == spare:
            await self._requests.remove_volume(self._volume(owner), tenant=owner[0])

    async def has_files(self, owner: Owner) -> bool:
        """Return whether a thread has a workspace."""
        return await self._requests.ask(docker_requests.has_volume, self._volume(owner))

    async def remove_files(self, owner: Owner) -> bool:
        """Remove a thread's workspace and return whether there was any; SandboxUnavailable while it is in use."""
        held = await self.held_by(owner)
        if held:
            await self._remove(config.spare_volume(self._instance, held), owner)
            return await self._requests.remove_volume(self._volume(owner), tenant=owner[0])
        return await self._remove(self._volume(owner), owner)

    async def _remove(self, volume: str, owner: Owner) -> bool:
        """Remove a volume, its files before it: nobody waits for these, however many they are."""

        def empty() -> None:
            empty_volume(self._requests, volume, image=self._runtime_image, instance=self._instance, owner=owner)

        return await self._requests.remove_volume(volume, tenant=owner[0], before=empty)

    async def _owners(self, labels: Mapping[str, str]) -> dict[str, Owner]:
        found = await self._requests.ask(
            docker_requests.labelled_volumes, {config.INSTANCE_LABEL: self._instance, **labels}
        )
        return {
            volume[config.HELD_LABEL]: (volume[config.TENANT_LABEL], volume[config.THREAD_LABEL])
            for volume in found.values()
        }

    def _volume(self, owner: Owner) -> str:
        return config.volume_of(self._instance, owner[1])
