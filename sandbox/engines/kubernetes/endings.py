"""Endings: how sandboxes are stopped and removed, and everything of a tenant; always behind the gate of a thread."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.engine import surplus
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.listing import Listing
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.reachability import in_use, retired
from sandbox.engines.kubernetes.records import Record, owner_in
from sandbox.engines.kubernetes.resources import CLAIMS, LEASES, Made
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable, reason_of
from sandbox.sandbox import ListedSandbox, Owner, digest, owner_by_name
from sandbox.transition import ASKED, CALLS_LOST, DELETED, EVICTED, MADE_OTHERWISE, OVERDUE, STOPPED_LIMIT, UNUSED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endings:
    """The methods of Ending and Leasing that stop or remove sandboxes, and those of Removal."""

    parts: Parts
    listing: Listing

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        await self.parts.prepared()
        async with self.parts.gates.entered(owner_by_name(tenant, thread)) as gate:
            if gate is None or not gate.record.has_sandbox:
                return None
            record = gate.record
            if record.state == "stopped":
                return self.listing.shown(record)
            if not await self._ready(gate):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            stopped = await self._stopped(gate, ASKED)
            return self.listing.shown(gate.record) if stopped else record.listed("removed")

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        await self.parts.prepared()
        async with self.parts.gates.entered(owner_by_name(tenant, thread)) as gate:
            if gate is None or not gate.record.has_sandbox:
                return None
            was = self.listing.shown(gate.record)
            if not await self._ready(gate):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
            await self.parts.drop(gate, ASKED)
            return was

    async def _ready(self, gate: Gate) -> bool:
        """Return whether a sandbox that its thread's owner wants ended may be: it is unused, or does not answer."""
        if gate.record.state != "running":
            return True
        return await retired(self.parts, gate, attached=True, busy=False, named=True)

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        await self.parts.prepared()
        async with self.parts.gates.entered(owner_by_name(tenant, thread)) as gate:
            if gate is None or gate.record.state != "running":
                return False
            lifetime = self.parts.lifetime
            if overdue and not lifetime.is_over(gate.record):
                return False
            with suppress(SandboxError, OSError):  # one that does not answer may have some
                if not lifetime.has_ended(gate.record) and not await in_use(self.parts, gate):
                    return False
            log.warning("removing sandbox %s with the calls in progress in it", gate.record.sandbox)
            await self.parts.drop(gate, OVERDUE if overdue else CALLS_LOST)
            return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        for owner in self.listing.owners(tenant):
            async with self.parts.gates.entered(owner, wait_s=0) as gate:
                if gate is None or gate.record.state != "running":
                    continue
                if not await retired(self.parts, gate, attached=True, busy=False):
                    continue
                if stop:
                    await self._stopped(gate, EVICTED)
                else:
                    await self.parts.drop(gate, EVICTED)
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        one = self.parts.attached.by_id.get(sandbox_id)
        if one is None:
            await self.remove(sandbox_id)
            return False
        async with self.parts.gates.entered(one.owner) as gate:
            if gate is None or gate.record.sandbox != sandbox_id or gate.record.state != "running":
                self.parts.attached.let_go(sandbox_id)
                return False
            if not await retired(self.parts, gate, attached=False, busy=False):
                self.parts.attached.let_go(sandbox_id)  # another process has it
                return False
            return await self._stopped(gate, UNUSED)

    async def _stopped(self, gate: Gate, reason: str) -> bool:
        """Stop a retired sandbox, or else remove it; return whether it is stopped."""
        parts, record = self.parts, gate.record
        processes = await self._running(gate)
        one = parts.attached.let_go(record.sandbox)
        untaken = 0 if one is None else one.uses.ended_processes
        if processes is None:
            await parts.drop(gate, f"{reason}; it could not be stopped", ended_processes=untaken)
            return False
        ended = record.ended_processes + untaken + processes
        # Noted first: a later start removes what is left of the Pod.
        stopped = replace(
            record, state="stopped", since_s=parts.lifetime.clock(), ended_processes=ended, unreached_s=0.0
        )
        await gate.write(stopped)
        await parts.workloads.stop(gate.owner, record.sandbox, gate.hold)
        log.info("sandbox %s is stopped: %s", record.sandbox, reason)
        also = f"; its background processes ({processes}) ended" if processes else ""
        parts.record(gate.owner, record, "idle_stopped", f"{reason}{also}")
        return True

    async def _running(self, gate: Gate) -> int | None:
        """Return how many background processes run in a sandbox without calls; None where it does not answer."""
        mine = self.parts.attached.by_id.get(gate.record.sandbox)
        if gate.record.state != "running":
            return None
        try:
            async with asyncio.timeout(2.0):
                one = mine or await self.parts.attach(gate.owner, gate.record)
                try:
                    found = await RemoteProcesses(one.channel).list()
                finally:
                    if mine is None:
                        one.close()
        except (SandboxError, OSError):
            return None
        return sum(process.running for process in found.processes) + found.strays

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        until_s = self.parts.lifetime.clock() - timeout_s
        removed = 0
        for owner in surplus(self.listing.stopped_owners(), until_s=until_s, limit=limit):
            async with self.parts.gates.entered(owner) as gate:
                if gate is not None and gate.record.state == "stopped":
                    await self.parts.drop(gate, STOPPED_LIMIT)
                    removed += 1
        return removed

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        one = self.parts.attached.by_id.get(sandbox_id)
        sandbox = None if one is None else one.sandbox
        if sandbox is not None and not sandbox.alive:
            reason = f"it was lost: {sandbox.channel.lost}"
        elif sandbox is not None and sandbox.outdated:
            reason = MADE_OTHERWISE
        await self.remove_for(sandbox_id, reason)

    async def remove_for(self, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox for this reason, unless another process has it, or it is stopped: that keeps its report."""
        one = self.parts.attached.by_id.get(sandbox_id)
        known = [known.owner for known in self.parts.leases.items.values() if known.record.sandbox == sandbox_id]
        owner = one.owner if one is not None else next(iter(known), None)
        if owner is None:
            return
        async with self.parts.gates.entered(owner) as gate:
            if gate is None or gate.record.sandbox != sandbox_id or gate.record.state == "stopped":
                self.parts.attached.let_go(sandbox_id)
            elif gate.record.state != "running" or await retired(self.parts, gate, attached=False, busy=True):
                await self.parts.drop(gate, reason)
            else:
                self.parts.attached.let_go(sandbox_id)

    # --- everything of a thread, of a tenant or of the instance, by labels, whichever process made it ---

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        await self.parts.prepared()
        return await self._remove_files(owner_by_name(tenant, thread))

    async def _remove_files(self, owner: Owner, reason: str = "") -> bool:
        """Remove a thread's files and its record; its sandbox too, for a reason, else it must be gone.

        Claims are found by their labels, for a record may have been lost.
        """
        parts = self.parts
        async with parts.gates.entered(owner, make=True) as gate:
            assert gate is not None  # noqa: S101 - it is made
            await parts.clean(gate)
            if gate.record.has_sandbox and not reason:
                raise SandboxUnavailable("the files of this thread are in use by its sandbox; remove that first")
            if gate.record.has_sandbox:
                await parts.drop(gate, reason)
            found = await self._labelled({"tenant": owner[0], "thread": owner[1]}, "claims")
            for made in found:
                await parts.requests.delete(CLAIMS, parts.site.namespace_of(owner), made["metadata"]["name"])
            await gate.write(Record())
            return bool(found)

    async def remove_all_of(self, tenant: str) -> int:
        mine = {"tenant": digest(tenant)}
        await self.parts.prepared()
        removed = sum([await self._remove_files(owner, DELETED) for owner in await self._threads(mine)])
        for name in await self.parts.workloads.found(**mine):  # what has no record
            await self.parts.workloads.remove((digest(tenant), ""), name)
        await self.parts.namespaces.remove(digest(tenant))
        return removed

    async def _threads(self, labels: Mapping[str, str]) -> set[Owner]:
        """Return the threads that have a record, or files whose record was lost."""
        found = [*await self._labelled(labels, "leases"), *await self._labelled(labels, "claims")]
        return {owner for made in found if (owner := owner_in(made))}

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        mine = {"tenant": digest(tenant)}
        await self.parts.prepared()
        records = (Record.of(lease) for lease in await self._labelled(mine, "leases"))
        sandboxes = {record.sandbox for record in records if record.has_sandbox}
        sandboxes |= (await self.parts.workloads.found(**mine)).keys()
        return {"volumes": len(await self._labelled(mine, "claims")), "containers": len(sandboxes)}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread whose sandbox no process has; raises at the end if some are in use."""
        parts = self.parts
        await parts.background.settled()
        await parts.prepared()
        left = []
        for owner in await self._threads({}):
            known = parts.leases.items.get(parts.site.lease_name(owner))
            stopped = known is not None and known.record.state == "stopped"
            try:
                await self._remove_files(owner, "the last gateway of the engine stops" if stopped else "")
            except SandboxUnavailable as error:
                left.append(reason_of(error))
        if left:
            raise SandboxUnavailable("; ".join(left))

    async def _labelled(self, labels: Mapping[str, str], what: str) -> list[Made]:
        """Return the objects of a kind, without those that are being deleted."""
        site = self.parts.site
        resource, kind = {"claims": (CLAIMS, "workspace"), "leases": (LEASES, "thread")}[what]
        namespace = site.namespace if resource == LEASES else site.scope(labels.get("tenant", ""))
        found, _ = await self.parts.requests.list(resource, namespace, site.selector(**labels, kind=kind))
        there = [made for made in found if not made["metadata"].get("deletionTimestamp")]
        return there if resource == LEASES else [made for made in there if site.has(made)]
