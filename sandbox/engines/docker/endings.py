"""Endings: how a thread's sandbox is stopped or removed, always behind the gate of its lock."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.attached_sandboxes import AttachedSandboxes
from sandbox.engines.docker.lock_directory import shut
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.sandbox_listing import SandboxListing, shown
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.thread_gates import Gate, ThreadGates
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxBusy
from sandbox.owner import Owner, owner_by_name
from sandbox.sandbox import ListedSandbox
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import ASKED, CALLS_LOST, MADE_OTHERWISE, OVERDUE, ROOM, UNUSED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endings:
    """The methods of Ending and Leasing that stop or remove sandboxes; their workspaces stay."""

    parts: Parts
    gates: ThreadGates
    attached: AttachedSandboxes
    stopped: StoppedContainers
    listing: SandboxListing

    # --- a thread's, whichever process has it ---

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        async with self.gates.existing(owner) as gate:
            if gate is None:
                return self.listing.at_rest(owner)
            if not await self._stop_unused(gate, ASKED):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            return self.listing.at_rest(owner) or shown(gate.note, "removed")

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        async with self.gates.existing(owner) as gate:
            if gate is not None:
                was = next((one for one in await self.listing.listed(tenant) if one.id == gate.note.sandbox), None)
                if not await self._remove_unused(gate, ASKED):
                    raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
                return was
        was = self.listing.at_rest(owner)
        return was if await self.stopped.remove(owner, ASKED) else None

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        async with self.gates.existing(owner_by_name(tenant, thread)) as gate:
            if gate is None or gate.lock.unused() or (overdue and not self.parts.lifetime.is_over(gate.note)):
                return False
            log.warning("removing sandbox %s with the calls in progress in it", gate.note.sandbox)
            await self.parts.containers.remove(gate.note.sandbox)
            gate.lock.retire()
            self.parts.record(gate.owner, gate.note, "removed", OVERDUE if overdue else CALLS_LOST)
            return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        end = self._stop_unused if stop else self._remove_unused
        for owner in self.parts.locks.owners():
            lock = self.parts.locks.try_enter(owner) if tenant in (None, owner[0]) else None
            if lock is None:
                continue
            try:
                note = lock.read()
                if note is not None and not note.unchecked and await end(Gate(owner, lock, note), ROOM):
                    return True
            finally:
                lock.close()
        return False

    async def _stop_unused(self, gate: Gate, reason: str) -> bool:
        """Stop a sandbox, or remove it if it cannot be stopped; return False while calls are under way in it."""
        if not gate.lock.unused():
            return False
        channel = self.parts.containers.channel(gate.note.sandbox)
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

    # --- one of this process ---

    async def stop_idle(self, sandbox_id: str) -> bool:
        attached = self.attached.pop(sandbox_id)
        if attached is None:
            await self.remove(sandbox_id)
            return False
        lock = attached.lock
        try:
            await shut(lock)
            note = lock.read()
            if note is None or note.sandbox != sandbox_id or lock.gone or not lock.hold_alone():
                return False
            stopped = await self.stopped.stop_or_remove(attached.owner, note, attached.channel, UNUSED)
            lock.retire()
            return stopped
        finally:
            attached.close()

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        attached = self.attached.get(sandbox_id)
        sandbox = None if attached is None else attached.sandbox
        if sandbox is not None and not sandbox.alive:
            reason = f"it was lost: {sandbox.channel.lost}"
        elif sandbox is not None and sandbox.outdated:
            reason = MADE_OTHERWISE
        await self.remove_for(sandbox_id, reason)

    async def remove_for(self, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox for this reason, whatever else is known of it."""
        attached = self.attached.pop(sandbox_id)
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
        return (found[0]["Labels"][config.TENANT_LABEL], found[0]["Labels"][config.THREAD_LABEL]) if found else None

    async def _remove_unshared(self, owner: Owner, lock: ThreadLock, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox unless another process has it; its lock is behind the gate, or gone."""
        try:
            if not lock.gone and lock.hold_alone():
                await self.parts.containers.remove(sandbox_id)
                note = lock.read()
                if note is None or note.sandbox == sandbox_id:
                    lock.retire()
                known = note if note is not None and note.sandbox == sandbox_id else Note(sandbox_id, "")
                self.parts.record(owner, known, "removed", reason)
        finally:
            lock.close()
