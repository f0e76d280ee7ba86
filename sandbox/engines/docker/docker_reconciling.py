"""DockerReconciling: what processes left that are gone. What is alive is kept, what is of no use is removed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.adopted_sandbox import AdoptedSandbox, reach
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.docker_workspaces import DockerWorkspaces
from sandbox.errors import SandboxUnavailable
from sandbox.owner import Owner
from sandbox.sandbox import LeftSandbox
from sandbox.thread_lock import Note
from sandbox.transition import CLAIM_LOST

log = logging.getLogger(__name__)


class DockerReconciling(DockerPool, DockerWorkspaces):
    """The ground with what is left on it."""

    _sandboxes: dict[str, ChannelSandbox]
    _left: dict[str, AdoptedSandbox]

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Look at what an earlier process of this instance left; workspaces always stay.

        Return the sandboxes that are alive and of this release, the newest first: create() takes one over when it is
        asked for the same, remove() removes it. The others are removed.
        """
        standing = self._locks.ground()
        try:
            if standing.try_gate():  # else another process is filling the runtime volume, and these are in use
                for container in await self._own_containers("runtime"):
                    await self._requests.ask(docker_requests.remove_container, container["Id"])
        finally:
            standing.close()
        await self.remove_carriers()
        await self._reconcile_pool()
        owned = await self._owned()
        containers = [
            (container, owner)
            for container, owner in owned
            # What is stopped and as it was left is not to be looked at each time.
            if _id_of(container) not in {*self._sandboxes, *self._left} and not self._rests(container, owner)
        ]
        containers.sort(key=lambda found: int(found[0]["Created"]), reverse=True)
        owners = [owner for _, owner in containers]
        for mine in dict.fromkeys(owners):
            await self._reconcile_thread(mine, [container for container, owner in containers if owner == mine])
        for mine in {*self._locks.owners()} - {*owners}:
            await self._reconcile_thread(mine, [])
        return [left.sandbox for left in self._left.values()]

    async def remove_all_of(self, tenant: str) -> int:
        """Remove all of a tenant, with replaced files that could not be removed at once.

        Such files are in a volume that no longer says whose it is, so SandboxUnavailable is raised at the end if any
        volume without an owner stays.
        """
        await self.remove_carriers()  # one that a process left would keep its volume in use
        left = await self._reconcile_pool()
        removed = await super().remove_all_of(tenant)
        if left:
            raise SandboxUnavailable(
                f"volumes of {', '.join(sorted(left))} could not be removed and may have files of this tenant; "
                "the gateway's log has the reasons"
            )
        return removed

    async def _owned(self) -> list[tuple[dict[str, Any], Owner]]:
        """Return the containers of this instance's sandboxes, and whose they are; pooled sandboxes are nobody's."""
        found = await self._own_containers("sandbox")
        pooled = any(config.POOL_LABEL in container["Labels"] for container in found)
        claimed = await self._claims.owners() if pooled else {}
        owners = ((container, _owner_of(container, claimed)) for container in found)
        return [(container, owner) for container, owner in owners if owner is not None]

    async def _reconcile_thread(self, owner: Owner, containers: Sequence[dict[str, Any]]) -> None:
        """Keep the newest one of a thread's sandboxes that is of use; leave alone what another process has."""
        lock = self._locks.try_enter(owner)
        if lock is None:
            return  # another process is at work there
        try:
            if not lock.hold_alone():
                lock.close()
                return
            note = lock.read()
            if note is not None and note.unchecked:
                await self._unclaim(owner, note.sandbox)
                self._told(owner, note, "removed", CLAIM_LOST)
                containers = [container for container in containers if _id_of(container) != note.sandbox]
            kept, resting = None, ""
            for container in containers:
                sandbox_id = _id_of(container)
                if await self._is_resting(owner, sandbox_id):
                    resting = sandbox_id
                    continue
                if kept is None:
                    kept = await reach(container, owner, self._channel_root, lock)
                    if kept is not None:
                        continue
                log.info("removing the orphaned sandbox %s", sandbox_id)
                await self._destroy(sandbox_id)
                known = note if note is not None and note.sandbox == sandbox_id else Note(sandbox_id, "")
                self._told(owner, known, "removed", "nobody has it, and it is of no use any more")
            if note is not None and not note.unchecked and note.sandbox not in map(_id_of, containers):
                # Its process died before there was a container, or somebody removed that: its channel is there yet.
                await self._destroy(note.sandbox)
                self._told(owner, note, "removed", "it is not there any more")
            if kept is not None and resting:
                await self._destroy(resting)
            if kept is not None or (containers and not resting):
                self._stopped.remove(owner)
        except BaseException:
            lock.close()
            raise
        if kept is None:
            lock.retire()
            return
        self._left[kept.sandbox.id] = kept
        if note is None or note.sandbox != kept.sandbox.id:
            note = Note(kept.sandbox.id, kept.made, held=kept.held)
            lock.write(note)
        lock.hold()
        lock.leave()
        self._told(owner, note, "running", "found, for its gateway is gone")

    def _rests(self, container: Mapping[str, Any], owner: Owner) -> bool:
        """Return whether a container is stopped for being idle and nobody is at work on it."""
        if container["State"] != "exited" or self._locks.has(owner):
            return False
        stopped = self._stopped.read(owner)
        return stopped is not None and stopped.note.sandbox == _id_of(container)


def _id_of(container: Mapping[str, Any]) -> str:
    return str(container["Labels"][config.SANDBOX_LABEL])


def _owner_of(container: Mapping[str, Any], claimed: Mapping[str, Owner]) -> Owner | None:
    labels = container["Labels"]
    if config.POOL_LABEL in labels:
        return claimed.get(labels[config.POOL_LABEL])
    return labels[config.TENANT_LABEL], labels[config.THREAD_LABEL]
