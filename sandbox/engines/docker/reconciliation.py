"""Reconciliation: what dead processes left. What is alive is adopted, the rest is removed; workspaces stay."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.lock_directory import let_go
from sandbox.engines.docker.parts import Container, Parts, id_of
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.workspace_transfer import WorkspaceTransfer
from sandbox.engines.handshake import introduced
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxError
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import LeftSandbox, Owner
from sandbox.thread_lock import Note
from sandbox.transition import CLAIM_LOST

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reconciliation:
    """Looks at what there is of an instance, thread by thread."""

    parts: Parts
    stopped: StoppedContainers
    pool: DockerPool
    transfer: WorkspaceTransfer

    async def reconcile(self) -> Sequence[LeftSandbox]:
        parts = self.parts
        with closing(parts.locks.serving()) as serving:
            if serving.try_gate():  # else another process is filling the runtime volume, and these are in use
                await parts.containers.remove_each(await parts.containers.of_kind("runtime"))
        await self.transfer.remove_left()
        await self.pool.reconcile()
        containers = [
            (container, owner)
            for container, owner in await self.owned()
            # A stopped sandbox that is as it was left needs no look each time.
            if id_of(container) not in parts.attached.by_id and not self.stopped.is_at_rest(container, owner)
        ]
        containers.sort(key=lambda found: int(found[0]["Created"]), reverse=True)
        owners = [owner for _, owner in containers]
        for mine in dict.fromkeys(owners):
            await self._reconcile_thread(mine, [container for container, owner in containers if owner == mine])
        for mine in {*parts.locks.owners()} - {*owners}:
            await self._reconcile_thread(mine, [])
        await self._remove_left_channels()
        return parts.attached.adopted()

    async def _remove_left_channels(self) -> None:
        """Remove channels without a sandbox, of processes whose notes are gone, too."""
        parts = self.parts
        # In this order: what is being made is noted before it has a channel, and has a channel before a container.
        left = {*await parts.channels.left()}
        left -= {*await parts.containers.owned()} if left else set()
        left -= {look.note.sandbox for look in parts.locks.looked_at()} | parts.pool_locks.ids() if left else set()
        for sandbox_id in left:
            log.info("removing the channel of sandbox %s, which is gone", sandbox_id)
            await parts.containers.remove(sandbox_id)

    async def running(self) -> list[str]:
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
        parts, lock = self.parts, self.parts.locks.try_enter(owner)
        if lock is None:
            return  # another process makes or removes its sandbox
        try:
            if not lock.hold_alone():
                lock.close()
                return
            note = lock.read()
            if note is not None and note.unchecked:
                await parts.unclaim(owner, note.sandbox)
                parts.record(owner, note, "removed", CLAIM_LOST)
                containers = [container for container in containers if id_of(container) != note.sandbox]
                note = None
            adopted = await self._newest_usable(owner, containers, note)
        except BaseException:
            let_go(lock)
            raise
        if adopted is None:
            lock.retire()
            return
        found, channel = adopted
        if note is None or note.sandbox != found.sandbox:
            note = found
            lock.write(note)
        parts.attached.adopt(note.sandbox, owner, channel, lock)
        parts.record(owner, note, "running", "adopted from a lost gateway")

    async def _newest_usable(
        self, owner: Owner, containers: Sequence[Container], note: Note | None
    ) -> tuple[Note, Channel] | None:
        """Return the first sandbox that answers; the others are removed, except a stopped one if none answers."""
        parts = self.parts
        adopted, stopped = None, ""
        for container in containers:
            sandbox_id = id_of(container)
            if await self.stopped.is_stopped(owner, sandbox_id):
                stopped = sandbox_id
                continue
            if adopted is None:
                adopted = await self._reached(owner, container)
                if adopted is not None:
                    continue
            log.info("removing the orphaned sandbox %s", sandbox_id)
            await parts.containers.remove(sandbox_id)
            known = Note.known(note, sandbox_id)
            parts.record(owner, known, "removed", "orphaned and unusable")
        if note is not None and note.sandbox not in map(id_of, containers):
            # Its process died before there was a container, or an operator removed that: its channel is still there.
            await parts.containers.remove(note.sandbox)
            parts.record(owner, note, "removed", "its container no longer exists")
        if adopted is not None and stopped:
            await parts.containers.remove(stopped)
        if adopted is not None or (containers and not stopped):
            parts.stopped.remove(owner)
        return adopted

    async def _reached(self, owner: Owner, container: Container) -> tuple[Note, Channel] | None:
        """Return what is known of the sandbox in a container, and a channel; None when it is not to be used."""
        made = container["Labels"].get(config.MADE_LABEL)
        if container["State"] != "running" or made is None:
            return None
        sandbox_id = id_of(container)
        channel = self.parts.channels.to(owner, sandbox_id)
        try:
            await introduced(channel)
        except SandboxError as error:
            log.info("sandbox %s is unusable: %s", sandbox_id, error)
            channel.close()
            return None
        return Note(sandbox_id, made, held=_pooled(container)), channel


def _owner_of(container: Container, claimed: Mapping[str, Owner]) -> Owner | None:
    labels = container["Labels"]
    return claimed.get(labels[config.POOL_LABEL]) if config.POOL_LABEL in labels else config.owner_in(labels)


def _pooled(container: Container) -> str:
    """Return the id of the pooled sandbox whose volume a container has; "" for a thread's own volume."""
    volumes = [mount.get("Name", "") for mount in container["Mounts"] if mount["Destination"] == WORKSPACE]
    name = volumes[0].rpartition("-workspace-")[2] if volumes else ""
    return name if is_pooled(name) else ""
