"""DockerGround: one Docker engine as all sandboxes of a gateway instance stand on it.

What it says of itself, its images, the runtime volume, workspaces, and which processes of the instance serve.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests, EngineFacts, FoundImage
from sandbox.engines.docker.engine_disk import EngineDisk
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.docker.pool_locks import PoolLocks
from sandbox.engines.docker.runtime_volume import Ground, prepare
from sandbox.engines.docker.stopped_sandboxes import StoppedSandboxes
from sandbox.engines.docker.workspace_claims import WorkspaceClaims
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxUnavailable
from sandbox.owner import Owner, digest, owner_by_name
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import CLAIM_LOST, DELETED, State, Tell, Transition, nobody
from sandbox.usage import Usage, usage_of


@dataclass(frozen=True)
class Image:
    """A tenant's image, by its id, and where nothing but something empty is to be."""

    id: str
    volumes: tuple[str, ...]


class DockerGround:
    """The ground; `base_url` is the engine's address, None means DOCKER_HOST or the default socket.

    `named_in` says where that address is written, to whom it does not answer.
    """

    def __init__(
        self,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str = "airlock-runtime",
        base_url: str | None = None,
        named_in: str = "base_url",
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
        lifetime_s: float | None = None,
        tell: Tell = nobody,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tell` hears what becomes of sandboxes. `clock` is in seconds since 1970.

        A sandbox is not to be used any more `lifetime_s` after it was made.
        """
        self._lifetime_s = lifetime_s
        self._tell = tell
        self._clock = clock
        self._instance = instance
        self._channel_root = channel_root.absolute()
        self._runtime_image = runtime_image
        self._requests = DockerRequests(base_url, named_in)
        self._disk = EngineDisk(self._requests)
        self._new_suffix = new_suffix
        self._locks = LockDirectory(self._channel_root, instance)
        self._pool_locks = PoolLocks(self._channel_root, instance)
        self._claims = WorkspaceClaims(self._requests, instance, runtime_image)
        self._stopped = StoppedSandboxes(self._channel_root, instance, clock)
        self._standing: ThreadLock | None = None
        # Whether no other process of the instance served when this one was about to go.
        self._last_standing = False
        self._engine_id = ""
        self._preparing = asyncio.Lock()
        self._ground: Ground | None = None
        self._looking: dict[str, asyncio.Future[FoundImage]] = {}
        self._closed = False
        self._removals: set[asyncio.Task[None]] = set()
        self.channels_identity = ""
        """Labels the containers that are made from now on; see channel_directory.py."""

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else the daemon watches it, and may be late."""
        return self._ground is not None and self._ground.workspace_quota

    async def id(self) -> str:
        """Return the id that the engine gave itself."""
        if not self._engine_id:
            self._engine_id = await self._requests.ask(docker_requests.engine_id)
        return self._engine_id

    async def ping(self) -> None:
        """Return when the engine answers, behind no other request; EngineUnavailable when it does not."""
        await self._requests.ping()

    async def describe(self) -> EngineFacts:
        """Return what the engine says of itself; EngineUnavailable when it does not answer."""
        return await self._requests.ask(docker_requests.describe)

    async def prepare(self) -> None:
        """Make ready what every sandbox needs; raises SandboxError when none could be made."""
        await self._prepared()

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good and return whether there were any; its sandbox must be gone."""
        return await self._claims.remove_files(owner_by_name(tenant, thread))

    async def remove_all_of(self, tenant: str) -> int:
        """Remove a tenant's sandboxes, busy ones too, and all its workspaces; return how many of these there were."""
        mine = digest(tenant)
        for owner in self._locks.owners():
            lock = await self._enter_existing(owner) if owner[0] == mine else None
            note = lock.read() if lock is not None else None
            if lock is None or note is None:
                continue
            try:
                await self._destroy(note.sandbox)
                lock.retire()
            finally:
                lock.close()
        for owner in self._stopped.owners():
            if owner[0] == mine:
                await self._remove_stopped(owner, DELETED)
        for container in await self._containers_left(tenant):
            await self._requests.ask(docker_requests.remove_container, container["Id"])
        removed = 0
        volumes = await self._requests.ask(docker_requests.labelled_volumes, self._labels_of(tenant))
        for labels in volumes.values():
            removed += await self._claims.remove_files((mine, labels[config.THREAD_LABEL]))
        return removed

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many `volumes` and `containers` of a tenant there are."""
        # A volume of the pool that a thread has is not counted beside its claim, for it never outlives that.
        volumes = await self._requests.ask(docker_requests.list_volumes, self._labels_of(tenant))
        return {"volumes": len(volumes), "containers": len(await self._containers_left(tenant))}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this instance for good, unless another process of it serves."""
        if self._removals:  # a sandbox that never came up may still hold its workspace
            await asyncio.wait(self._removals)
        if not await self._stands_alone():
            return
        await self._remove_all_stopped()
        left = []
        volumes = await self._requests.ask(docker_requests.labelled_volumes, self._labels("workspace"))
        for name, labels in volumes.items():
            owner = (
                labels.get(config.TENANT_LABEL, ""),
                labels.get(config.THREAD_LABEL, labels.get(config.POOL_LABEL, "")),
            )
            try:
                try:
                    await self._requests.ask(docker_requests.remove_volume, name)
                except SandboxUnavailable:
                    await self._claims.remove_deep(name, owner)
            except SandboxUnavailable as error:
                left.append(str(error))
        if left:
            raise SandboxUnavailable("; ".join(left))

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        """Return what a sandbox uses now; None where it is gone."""
        name = config.container_name(self._instance, sandbox.id)
        stats = await self._requests.ask(docker_requests.container_stats, name)
        if stats is None:
            return None
        found = usage_of(stats)
        if sandbox.runtime == "runc":
            return found
        # Told to leave control groups alone, gVisor is in the host's own: it limits no processes, and what it counts is
        # no tenant's to see. In one of its own, most of what counts as processes are threads of its kernel.
        return Usage() if found.pids_limit is None else dataclasses.replace(found, pids=None, pids_limit=None)

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this instance runs, by its id, pooled sandboxes too."""
        containers = await self._own_containers("sandbox")
        return {one["Labels"][config.SANDBOX_LABEL]: one["State"] == "running" for one in containers}

    async def _containers_left(self, tenant: str) -> list[dict[str, Any]]:
        """Return every container of a tenant, also those that were made before they were anybody's."""
        found = await self._requests.ask(docker_requests.list_containers, self._labels_of(tenant))
        claimed = await self._claims.of_tenant(digest(tenant))
        names = [config.container_name(self._instance, pooled) for pooled in claimed]
        return [*found, *await self._requests.ask(docker_requests.named_containers, names)]

    async def _owner_of(self, sandbox_id: str) -> Owner | None:
        """Return whose a sandbox is that has a container; None for a pooled sandbox, and where there is none."""
        if is_pooled(sandbox_id):
            return await self._claims.owner_of(sandbox_id)
        labels = {**self._labels("sandbox"), config.SANDBOX_LABEL: sandbox_id}
        found = await self._requests.ask(docker_requests.list_containers, labels)
        return (found[0]["Labels"][config.TENANT_LABEL], found[0]["Labels"][config.THREAD_LABEL]) if found else None

    async def _enter_existing(self, owner: Owner) -> ThreadLock | None:
        """Return the lock of an owner's sandbox behind its gate, as LockDirectory does; None where there is none."""
        lock = await self._locks.enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is not None and note is not None and note.unchecked:
            await self._give_up_claim(owner, note, lock)
            return None
        return lock

    async def _give_up_claim(self, owner: Owner, note: Note, lock: ThreadLock) -> None:
        """Remove what a process left behind a thread's gate that died in the midst of a claim, and the lock."""
        try:
            await self._unclaim(owner, note.sandbox)
            lock.retire()
        finally:
            lock.close()
        self._told(owner, note, "removed", CLAIM_LOST)

    async def _unclaim(self, owner: Owner, pooled: str) -> None:
        """Remove a pooled sandbox whose claim nobody finished, behind the gate of the thread that it was meant for."""
        await self._destroy(pooled)
        await self._claims.give_back(owner, pooled)

    async def _remove_stopped(self, owner: Owner, reason: str) -> bool:
        """Remove what is stopped of a thread; return whether there was anything that nobody started meanwhile."""
        if not self._stopped.has(owner):
            return False
        lock = await self._locks.enter(owner)
        try:
            stopped, note = self._stopped.read(owner), lock.read()
            # It may run again, and a crash have left the file.
            gone = stopped is not None and (note is None or note.sandbox != stopped.note.sandbox)
            if stopped is not None and gone:
                await self._destroy(stopped.note.sandbox)
                self._told(owner, stopped.note, "removed", reason)
            self._stopped.remove(owner)
            if note is None:
                lock.retire()
            return gone
        finally:
            lock.close()

    async def _remove_all_stopped(self) -> None:
        for owner in self._stopped.owners():
            await self._remove_stopped(owner, "the last gateway of the engine stops")

    def _told(self, owner: Owner, note: Note, state: State, reason: str) -> None:
        self._tell(Transition(*owner, note.sandbox, state, reason, note.thread))

    def _old_after_s(self, note: Note) -> float | None:
        """Return when a sandbox is past its lifetime; None for never, and for one that nobody noted the making of."""
        return None if self._lifetime_s is None or not note.created_s else note.created_s + self._lifetime_s

    def _is_old(self, note: Note) -> bool:
        return self._overdue_s(note) is not None

    def _overdue_s(self, note: Note) -> float | None:
        """Return for how long a sandbox is past its lifetime; None while it is not."""
        old_after_s = self._old_after_s(note)
        past_s = -1.0 if old_after_s is None else self._clock() - old_after_s
        return past_s if past_s >= 0 else None

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do what is waited for before the engine is let go of."""
        task = asyncio.create_task(work)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    async def _prepared(self) -> Ground:
        """Return what sandboxes stand on, the runtime volume filled; asks the engine once."""
        if self._ground is None:
            async with self._preparing:
                if self._ground is None:
                    if self._standing is not None:
                        self._standing.close()
                    self._standing = await self._locks.enter_ground()
                    try:
                        self._ground = await self._requests.ask(prepare, self._runtime_image, self._instance)
                    finally:
                        self._standing.hold()
                        self._standing.leave()
        return self._ground

    async def _stands_alone(self) -> bool:
        """Return whether no other process of the instance serves; this one is no hindrance to others from then on."""
        if self._standing is not None:
            self._standing.close()
            self._standing = None
        standing = await self._locks.enter_ground()
        try:
            if not standing.hold_alone():
                return False
            standing.retire()
            self._last_standing = True
            return True
        finally:
            standing.close()

    async def _own_containers(self, kind: str) -> list[dict[str, Any]]:
        return await self._requests.ask(docker_requests.list_containers, self._labels(kind))

    def _labels_of(self, tenant: str) -> dict[str, str]:
        return {config.INSTANCE_LABEL: self._instance, config.TENANT_LABEL: digest(tenant)}

    def _labels(self, kind: str) -> dict[str, str]:
        return {config.INSTANCE_LABEL: self._instance, config.KIND_LABEL: kind}

    async def _image(self, name: str) -> Image:
        found = await self._found_image(name)
        try:
            return Image(found.id, config.image_volumes(found.volumes))
        except ValueError as error:
            raise SandboxUnavailable(
                f"image {name!r} cannot be used: {error}; rebuild it without that VOLUME"
            ) from error

    async def _found_image(self, name: str) -> FoundImage:
        """Return what the engine says of an image: asked once for all who want to know it in the same moment."""
        looking = self._looking.get(name)
        if looking is None:
            looking = asyncio.ensure_future(self._requests.ask(docker_requests.inspect_image, name))
            self._looking[name] = looking
            looking.add_done_callback(lambda _: self._looking.pop(name))
        return await asyncio.shield(looking)

    def _config(self, spec: SandboxSpec, sandbox_id: str, ground: Ground, image: Image, *, held: str) -> dict[str, Any]:
        return config.container_config(
            dataclasses.replace(spec, image=image.id),
            instance=self._instance,
            sandbox_id=sandbox_id,
            runtime=ground.runtime,
            channel_directory=str(self._channel_root / sandbox_id),
            gateway_gid=os.getgid(),
            workspace_quota=ground.workspace_quota,
            volumes=image.volumes,
            held=held,
            channels=self.channels_identity,
        )

    async def _destroy(self, sandbox_id: str) -> None:
        name = config.container_name(self._instance, sandbox_id)
        await self._requests.ask(docker_requests.remove_container, name)
        await self._requests.run(lambda: shutil.rmtree(self._channel_root / sandbox_id, ignore_errors=True))

    def _make_channel_directory(self, sandbox_id: str) -> Path:
        self._channel_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self._channel_root / sandbox_id
        directory.mkdir()
        # Root in the container has no power over other people's files, so it enters by the gateway's group.
        os.chown(directory, -1, os.getgid())
        directory.chmod(0o770)
        return directory
