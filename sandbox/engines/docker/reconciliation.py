"""Reconciliation: what dead processes left. What is alive is adopted, the rest is removed; workspaces stay."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.attached_sandboxes import AttachedSandboxes
from sandbox.engines.docker.carriers import Carriers
from sandbox.engines.docker.containers import Container, Containers, id_of
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.handshake import introduced
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.thread_gates import ThreadGates
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxError
from sandbox.filesystem import WORKSPACE
from sandbox.owner import Owner
from sandbox.sandbox import LeftSandbox
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import CLAIM_LOST

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdoptedSandbox:
    """`made` is the digest of its configuration; `pooled` the id of the pooled sandbox whose volume it has, or ""."""

    id: str
    made: str
    pooled: str
    channel: Channel


@dataclass(frozen=True)
class Reconciliation:
    """Looks at what there is of an instance, thread by thread."""

    parts: Parts
    gates: ThreadGates
    attached: AttachedSandboxes
    stopped: StoppedContainers
    pool: DockerPool
    carriers: Carriers

    async def reconcile(self) -> Sequence[LeftSandbox]:
        serving = self.parts.locks.serving()
        try:
            if serving.try_gate():  # else another process is filling the runtime volume, and these are in use
                await self.parts.containers.remove_each(await self.parts.containers.of_kind("runtime"))
        finally:
            serving.close()
        await self.carriers.remove_left()
        await self.pool.reconcile()
        containers = [
            (container, owner)
            for container, owner in await self.owned()
            # A stopped sandbox that is as it was left needs no look each time.
            if id_of(container) not in self.attached and not self.stopped.is_at_rest(container, owner)
        ]
        containers.sort(key=lambda found: int(found[0]["Created"]), reverse=True)
        owners = [owner for _, owner in containers]
        for mine in dict.fromkeys(owners):
            await self._reconcile_thread(mine, [container for container, owner in containers if owner == mine])
        for mine in {*self.parts.locks.owners()} - {*owners}:
            await self._reconcile_thread(mine, [])
        return self.attached.adopted()

    async def running(self) -> list[str]:
        """Return the ids of the sandboxes that are not stopped, of all processes."""
        return [id_of(one) for one, owner in await self.owned() if not self.stopped.is_at_rest(one, owner)]

    async def owned(self) -> list[tuple[Container, Owner]]:
        """Return the containers of this instance's sandboxes, with their owners; unclaimed pooled ones have none."""
        found = await self.parts.containers.of_kind("sandbox")
        pooled = any(config.POOL_LABEL in container["Labels"] for container in found)
        claimed = await self.parts.claims.owners() if pooled else {}
        owners = ((container, _owner_of(container, claimed)) for container in found)
        return [(container, owner) for container, owner in owners if owner is not None]

    async def _reconcile_thread(self, owner: Owner, containers: Sequence[Container]) -> None:
        """Adopt the newest usable one of a thread's sandboxes; leave alone what another process has."""
        lock = self.parts.locks.try_enter(owner)
        if lock is None:
            return  # another process makes or removes its sandbox
        try:
            if not lock.hold_alone():
                lock.close()
                return
            note = lock.read()
            if note is not None and note.unchecked:
                await self.gates.unclaim(owner, note.sandbox)
                self.parts.record(owner, note, "removed", CLAIM_LOST)
                containers = [container for container in containers if id_of(container) != note.sandbox]
                note = None
            adopted = await self._newest_usable(owner, containers, note)
        except BaseException:
            lock.close()
            raise
        if adopted is None:
            lock.retire()
        else:
            self._adopt(owner, adopted, note, lock)

    async def _newest_usable(
        self, owner: Owner, containers: Sequence[Container], note: Note | None
    ) -> AdoptedSandbox | None:
        """Return the first sandbox that answers; the others are removed, except a stopped one if none answers."""
        parts = self.parts
        adopted, stopped = None, ""
        for container in containers:
            sandbox_id = id_of(container)
            if await self.stopped.is_stopped(owner, sandbox_id):
                stopped = sandbox_id
                continue
            if adopted is None:
                adopted = await _reached(container, parts.containers)
                if adopted is not None:
                    continue
            log.info("removing the orphaned sandbox %s", sandbox_id)
            await parts.containers.remove(sandbox_id)
            known = note if note is not None and note.sandbox == sandbox_id else Note(sandbox_id, "")
            parts.record(owner, known, "removed", "nobody has it, and it is of no use any more")
        if note is not None and note.sandbox not in map(id_of, containers):
            # Its process died before there was a container, or an operator removed that: its channel is still there.
            await parts.containers.remove(note.sandbox)
            parts.record(owner, note, "removed", "it is not there any more")
        if adopted is not None and stopped:
            await parts.containers.remove(stopped)
        if adopted is not None or (containers and not stopped):
            parts.stopped.remove(owner)
        return adopted

    def _adopt(self, owner: Owner, adopted: AdoptedSandbox, note: Note | None, lock: ThreadLock) -> None:
        if note is None or note.sandbox != adopted.id:
            note = Note(adopted.id, adopted.made, held=adopted.pooled)
            lock.write(note)
        self.attached.adopt(adopted.id, owner, adopted.channel, lock)
        self.parts.record(owner, note, "running", "found, for its gateway is gone")


def _owner_of(container: Container, claimed: Mapping[str, Owner]) -> Owner | None:
    labels = container["Labels"]
    if config.POOL_LABEL in labels:
        return claimed.get(labels[config.POOL_LABEL])
    return labels[config.TENANT_LABEL], labels[config.THREAD_LABEL]


async def _reached(container: Container, containers: Containers) -> AdoptedSandbox | None:
    """Return the sandbox in a container; None when it is not to be used."""
    labels = container["Labels"]
    if container["State"] != "running" or config.MADE_LABEL not in labels:
        return None
    sandbox_id = id_of(container)
    channel = containers.channel(sandbox_id)
    try:
        await introduced(channel)
    except SandboxError as error:
        log.info("sandbox %s is of no use any more: %s", sandbox_id, error)
        channel.close()
        return None
    return AdoptedSandbox(sandbox_id, labels[config.MADE_LABEL], _pooled(container), channel)


def _pooled(container: Container) -> str:
    volumes = [mount.get("Name", "") for mount in container["Mounts"] if mount["Destination"] == WORKSPACE]
    name = volumes[0].rpartition("-workspace-")[2] if volumes else ""
    return name if is_pooled(name) else ""
