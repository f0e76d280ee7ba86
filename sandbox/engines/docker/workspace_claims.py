"""WorkspaceClaims: which volume has a thread's files.

It is the volume of the thread's own name, unless the thread took a sandbox from the pool: the mounts of a container
cannot change, so its files stay in the volume that the pooled sandbox was made with, and a **claim** records their
owner. A claim is an empty volume of the thread's name with one label more, which names the pooled sandbox. The engine
makes a volume of a name once, even for concurrent requests, and keeps it over its own crash.

    airlock-i-workspace-<thread>      tenant, thread, held=pool-1f0e...     the claim; nothing is ever written to it
    airlock-i-workspace-pool-1f0e...  pool=pool-1f0e...                     the files

What holds the files goes first and the claim last, so that whatever is left of a thread still counts as its tenant's.
Files that replace others are written to such a volume, too: nothing of the old ones goes before the new ones are whole.
"""

import io
import json
import logging
import posixpath
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, WorkspaceIncomplete, reason_of
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Owner

log = logging.getLogger(__name__)


def empty_volume(requests: DockerRequests, volume: str, *, image: str, instance: str, owner: Owner) -> bool:
    """Remove what is in a thread's volume, if no container has that; return whether any may be gone. It blocks.

    An engine that removes a volume makes no other one until it is through with all files in it, a second or more for
    each 50,000. It blocks no request while it unpacks an archive into a container, and where a file replaces a
    directory, it first removes that with all that is in it. So an archive of one file is unpacked in the place of the
    workspace, in a container that is never started. That a volume is mounted there the engine sees when all is gone
    from it, and refuses. Where an engine does not do so, files are left, which go with the volume.
    """
    name = config.carrier_name(instance, owner)
    ask, begun = requests.ask_here, False
    try:
        if ask(docker_requests.volume_labels, volume) is None or ask(docker_requests.is_mounted, volume):
            return begun
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(posixpath.basename(WORKSPACE)))
        ask(docker_requests.create_container, config.emptier_config(image, volume, instance, owner), name)
        try:
            begun = True
            requests.put_archive(name, posixpath.dirname(WORKSPACE), [archive.getvalue()])
        finally:
            ask(docker_requests.remove_container, name)
    except SandboxError as error:
        log.debug("emptied volume %s: %s", volume, error)
    return begun


def empty_deep_volume(requests: DockerRequests, volume: str, *, image: str, instance: str, owner: Owner) -> None:
    """Remove what is in a volume with a tree too deep for the engine, by a program that runs in a container; it blocks.

    A tree with more levels than an engine may have descriptors it can remove neither way. A program of ours can. Raises
    SandboxError where that does not come to its end, and where a container has the volume.
    """
    if requests.ask_here(docker_requests.is_mounted, volume):
        raise SandboxUnavailable(f"volume {volume} is in use")
    name = config.carrier_name(instance, owner)
    found = requests.ask_here(docker_requests.inspect_image, image)
    body = config.deep_emptier_config(json.loads(found.labels[config.COMMAND_LABEL]), image, volume, instance, owner)
    try:
        # What is left when it ends is less than before; a later removal goes on with it.
        code = requests.ask_here(docker_requests.run_container, body, name, timeout_s=120)
    finally:
        requests.ask_here(docker_requests.remove_container, name)
    if code:
        raise SandboxUnavailable(f"volume {volume} could not be emptied: the program for it exited with {code}")


class WorkspaceClaims:
    """The claims of one gateway instance. A thread's is changed behind the gate of its ThreadLock."""

    def __init__(self, requests: DockerRequests, instance: str, runtime_image: str) -> None:
        self._requests = requests
        self._instance = instance
        self._emptier = {"image": runtime_image, "instance": instance}

    async def pooled_of(self, owner: Owner) -> str:
        """Return the id of the pooled sandbox whose volume has a thread's files; "" where it is the thread's own."""
        labels = await self._requests.ask(docker_requests.volume_labels, self._volume(owner))
        return "" if labels is None else labels.get(config.HELD_LABEL, "")

    async def owners(self, *, pooled: str = "", tenant: str = "") -> Mapping[str, Owner]:
        """Return the owners of claimed pooled sandboxes: of all, of one, or of a tenant's, by its digest."""
        claims = await self.workspaces({config.HELD_LABEL: pooled, config.TENANT_LABEL: tenant})
        return {labels[config.HELD_LABEL]: config.owner_in(labels) for labels in claims.values()}

    async def owner_of(self, pooled: str) -> Owner | None:
        """Return the owner of a pooled sandbox; None for an unclaimed one."""
        return (await self.owners(pooled=pooled)).get(pooled)

    async def take(self, owner: Owner, pooled: str) -> bool:
        """Give a pooled sandbox's volume to a thread; False where the thread has a workspace already."""
        labels = config.owner_labels(self._instance, owner)
        labels |= {config.KIND_LABEL: "workspace", config.HELD_LABEL: pooled}
        there = await self._requests.ask(docker_requests.make_volume, self._volume(owner), labels)
        return there.get(config.HELD_LABEL) == pooled

    async def give_back(self, owner: Owner, pooled: str, *, filled: bool = False) -> None:
        """Remove a pooled sandbox's volume, which has files or none, and the claim to it if there is one.

        Its container must be gone.
        """
        volume = config.volume_of(self._instance, pooled)
        if filled:
            await self._remove(volume, owner)
        else:
            await self._requests.remove_volume(volume, tenant=owner[0])
        if await self.pooled_of(owner) == pooled:
            await self._requests.remove_volume(self._volume(owner), tenant=owner[0])

    async def forget_lost(self, owner: Owner, pooled: str) -> None:
        """Remove the claim of a thread without a sandbox to a volume that is not there."""
        volume = config.volume_of(self._instance, pooled)
        if await self._requests.ask(docker_requests.volume_labels, volume) is None:
            await self.give_back(owner, pooled)

    async def remove_empty(self, pooled: str) -> None:
        """Remove the volume of an unclaimed sandbox, which should be empty."""
        await self._requests.ask(docker_requests.remove_volume, config.volume_of(self._instance, pooled))

    async def remove_volume(self, volume: str, owner: Owner) -> None:
        """Remove any volume of the instance, by a program where the engine fails at it."""
        try:
            await self._requests.ask(docker_requests.remove_volume, volume)
        except SandboxUnavailable:
            await self.remove_deep(volume, owner)

    async def workspaces(self, labels: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of the instance's volumes that have these, by name."""
        labels = {config.INSTANCE_LABEL: self._instance, **labels}
        return await self._requests.ask(docker_requests.labelled_volumes, labels)

    async def pooled_volumes(self) -> Collection[str]:
        """Return the ids of pooled sandboxes that have a volume, claimed or not."""
        return {labels[config.POOL_LABEL] for labels in (await self.workspaces({config.POOL_LABEL: ""})).values()}

    async def has_files(self, owner: Owner) -> bool:
        return await self._requests.ask(docker_requests.volume_labels, self._volume(owner)) is not None

    async def remove_files(self, owner: Owner) -> bool:
        """Remove a thread's workspace and return whether there was any.

        Raises WorkspaceIncomplete where files may be gone. With any other error none is: SandboxUnavailable while the
        workspace is in use.
        """
        pooled = await self.pooled_of(owner)
        if not pooled:
            return await self._remove(self._volume(owner), owner)
        await self._remove(config.volume_of(self._instance, pooled), owner)
        with _destroying(lambda: True):
            return await self._requests.remove_volume(self._volume(owner), tenant=owner[0])

    async def replace_files(self, owner: Owner, fresh: str) -> None:
        """Replace a thread's files by the volume of an unclaimed pooled sandbox. Raises as remove_files().

        Files that a claim holds are removed when the new claim is there; what remains of them goes with the next start.
        """
        pooled = await self.pooled_of(owner)
        if pooled:
            with _destroying():
                await self._requests.remove_volume(self._volume(owner), tenant=owner[0])
        else:
            await self._remove(self._volume(owner), owner)
        with _destroying(lambda: True):
            if not await self.take(owner, fresh):
                raise SandboxUnavailable("the thread has got other files meanwhile")
        if pooled:
            try:
                await self._remove(config.volume_of(self._instance, pooled), owner)
            except SandboxError as error:
                log.warning("files of a thread that were replaced stay until the next start: %s", error)

    async def _remove(self, volume: str, owner: Owner) -> bool:
        """Remove a volume, its files before it: no other request waits for these, however many they are."""
        begun = False

        def empty() -> None:
            nonlocal begun
            begun = empty_volume(self._requests, volume, **self._emptier, owner=owner)

        with _destroying(lambda: begun):
            try:
                return await self._requests.remove_volume(volume, tenant=owner[0], before=empty)
            except SandboxUnavailable as error:
                if not begun:
                    raise
                log.info("volume %s is emptied by a program, for the engine could not: %s", volume, error)
                return await self.remove_deep(volume, owner)

    async def remove_deep(self, volume: str, owner: Owner) -> bool:
        """Remove a volume that the engine failed to remove, as one with a tree too deep for it."""
        empty = partial(empty_deep_volume, self._requests, volume, **self._emptier, owner=owner)
        await self._requests.threads.emptiers.run(empty, tenant=owner[0])
        return await self._requests.remove_volume(volume, tenant=owner[0])

    def _volume(self, owner: Owner) -> str:
        return config.volume_of(self._instance, owner[1])


@contextmanager
def _destroying(begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise WorkspaceIncomplete for an error once `begun` says so, or where the engine may have done its work."""
    try:
        yield
    except SandboxError as error:
        if begun() or isinstance(error, EngineUnavailable):
            raise WorkspaceIncomplete(f"the engine failed while files were removed: {reason_of(error)}") from error
        raise
