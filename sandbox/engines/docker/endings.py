"""Endings: how sandboxes are stopped and removed, and everything of a tenant; always behind the gate of a lock."""

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.docker_pool import DockerPool
from sandbox.engines.docker.lock_directory import shut
from sandbox.engines.docker.parts import Gate, Parts
from sandbox.engines.docker.sandbox_listing import SandboxListing, shown
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.workspace_transfer import WorkspaceTransfer
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxBusy, SandboxUnavailable
from sandbox.sandbox import ListedSandbox, Owner, digest, owner_by_name
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import ASKED, CALLS_LOST, DELETED, EVICTED, MADE_OTHERWISE, OVERDUE, UNUSED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endings:
    """The methods of Ending and Leasing that stop or remove sandboxes, and those of Removal."""

    parts: Parts
    stopped: StoppedContainers
    listing: SandboxListing
    pool: DockerPool
    transfer: WorkspaceTransfer

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        async with self.parts.gate(owner) as gate:
            if gate is None:
                return self.listing.at_rest(owner)
            if not await self._stop_unused(gate, ASKED):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            return self.listing.at_rest(owner) or shown(gate.note, "removed")

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        async with self.parts.gate(owner) as gate:
            if gate is not None:
                was = next((one for one in await self.listing.listed(tenant) if one.id == gate.note.sandbox), None)
                if not await self._remove_unused(gate, ASKED):
                    raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
                return was
        was = self.listing.at_rest(owner)
        return was if await self.stopped.remove(owner, ASKED) else None

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        async with self.parts.gate(owner_by_name(tenant, thread)) as gate:
            if gate is None or gate.lock.unused() or (overdue and not self.parts.lifetime.is_over(gate.note)):
                return False
            log.warning("removing sandbox %s with the calls in progress in it", gate.note.sandbox)
            await self.parts.containers.remove(gate.note.sandbox)
            gate.lock.retire()
            self.parts.record(gate.owner, gate.note, "removed", OVERDUE if overdue else CALLS_LOST)
            return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        end = self._stop_unused if stop else self._remove_unused
        for owner in self.parts.locks.owners(tenant):
            # Another process may have removed it since: a lock made here would count as a sandbox.
            lock = self.parts.locks.try_enter(owner, make=False)
            if lock is None:
                continue
            with closing(lock):
                note = lock.read()
                if note is not None and not note.unchecked and await end(Gate(owner, lock, note), EVICTED):
                    return True
        return False

    async def _stop_unused(self, gate: Gate, reason: str) -> bool:
        """Stop a sandbox, or remove it if it cannot be stopped; return False while calls are under way in it."""
        if not gate.lock.unused():
            return False
        channel = self.parts.channels.to(gate.owner, gate.note.sandbox)
        await self.stopped.stop_or_remove(gate.owner, gate.note, channel, reason)
        gate.lock.retire()
        return True

    async def _remove_unused(self, gate: Gate, reason: str) -> bool:
        """Remove a sandbox; return False while calls are under way in it."""
        if not gate.lock.unused():
            return False
        await self.parts.containers.remove(gate.note.sandbox)
        self.parts.stopped.remove(gate.owner)  # a crash while it was being stopped may have left it
        gate.lock.retire()
        self.parts.record(gate.owner, gate.note, "removed", reason)
        return True

    async def stop_idle(self, sandbox_id: str) -> bool:
        attached = self.parts.attached.by_id.pop(sandbox_id, None)
        if attached is None:
            await self.remove(sandbox_id)
            return False
        lock = attached.lock
        with closing(attached):
            await shut(lock)
            note = lock.read()
            if note is None or note.sandbox != sandbox_id or lock.gone or not lock.hold_alone():
                return False
            stopped = await self.stopped.stop_or_remove(attached.owner, note, attached.channel, UNUSED)
            lock.retire()
            return stopped

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        attached = self.parts.attached.by_id.get(sandbox_id)
        sandbox = None if attached is None else attached.sandbox
        if sandbox is not None and not sandbox.alive:
            reason = f"it was lost: {sandbox.channel.lost}"
        elif sandbox is not None and sandbox.outdated:
            reason = MADE_OTHERWISE
        await self.remove_for(sandbox_id, reason)

    async def remove_for(self, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox for this reason, whatever else is known of it."""
        attached = self.parts.attached.by_id.pop(sandbox_id, None)
        if attached is not None:
            attached.channel.close()
            await shut(attached.lock)
            await self._remove_unshared(attached.owner, attached.lock, sandbox_id, reason)
            return
        owner = await self._owner_of(sandbox_id)
        if owner is None:
            return
        stopped = self.parts.stopped.read(owner)
        if stopped is not None and stopped.note.sandbox == sandbox_id:
            await self.stopped.remove(owner, reason)
            return
        await self._remove_unshared(owner, await self.parts.locks.enter(owner), sandbox_id, reason)

    async def _owner_of(self, sandbox_id: str) -> Owner | None:
        """Return the owner of a sandbox with a container; None for an unclaimed pooled one, and for none."""
        if is_pooled(sandbox_id):
            return await self.parts.claims.owner_of(sandbox_id)
        labels = {config.KIND_LABEL: "sandbox", config.SANDBOX_LABEL: sandbox_id}
        found = await self.parts.containers.labelled(labels)
        return config.owner_in(found[0]["Labels"]) if found else None

    async def _remove_unshared(self, owner: Owner, lock: ThreadLock, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox unless another process has it; its lock is behind the gate, or gone."""
        with closing(lock):
            if not lock.gone and lock.hold_alone():
                await self.parts.containers.remove(sandbox_id)
                note = lock.read()
                if note is None or note.sandbox == sandbox_id:
                    lock.retire()
                self.parts.record(owner, Note.known(note, sandbox_id), "removed", reason)

    # --- everything of a tenant or of the instance, by labels, whichever process made it ---

    async def remove_all_of(self, tenant: str) -> int:
        """Remove all of a tenant, with replaced files that could not be removed at once.

        Such files are in a volume that no longer says whose it is, so SandboxUnavailable is raised at the end if any
        volume without an owner stays.
        """
        parts, mine = self.parts, digest(tenant)
        await self.transfer.remove_left()  # a carrier that a dead process left would keep its volume in use
        left = await self.pool.reconcile()
        for owner in parts.locks.owners(mine):
            async with parts.gate(owner) as gate:
                if gate is not None:
                    await parts.containers.remove(gate.note.sandbox)
                    gate.lock.retire()
        for owner in parts.stopped.owners(mine):
            await self.stopped.remove(owner, DELETED)
        await parts.containers.remove_each(await self._containers_of(mine))
        volumes = await parts.claims.workspaces({config.TENANT_LABEL: mine})
        removed = sum([await parts.claims.remove_files(config.owner_in(labels)) for labels in volumes.values()])
        if left:
            raise SandboxUnavailable(
                f"volumes of {', '.join(sorted(left))} could not be removed and may have files of this tenant; "
                "the gateway's log has the reasons"
            )
        return removed

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        mine = digest(tenant)
        # The volume of a claimed pooled sandbox is not counted beside its claim, which outlives it.
        volumes = await self.parts.claims.workspaces({config.TENANT_LABEL: mine})
        return {"volumes": len(volumes), "containers": len(await self._containers_of(mine))}

    async def remove_workspaces(self) -> None:
        parts = self.parts
        await parts.background.settled()  # a sandbox that never came up may still use its workspace
        if not await parts.setup.stop_serving():
            return
        await self.stopped.remove_all()
        left = []
        for name, labels in (await parts.claims.workspaces({config.KIND_LABEL: "workspace"})).items():
            thread = labels.get(config.THREAD_LABEL, labels.get(config.POOL_LABEL, ""))
            try:
                await parts.claims.remove_volume(name, (labels.get(config.TENANT_LABEL, ""), thread))
            except SandboxUnavailable as error:
                left.append(str(error))
        if left:
            raise SandboxUnavailable("; ".join(left))

    async def _containers_of(self, mine: str) -> list[dict[str, Any]]:
        """Return every container of a tenant, claimed pooled ones too, which do not have its label."""
        containers, claimed = self.parts.containers, await self.parts.claims.owners(tenant=mine)
        return [*await containers.labelled({config.TENANT_LABEL: mine}), *await containers.named([*claimed])]
