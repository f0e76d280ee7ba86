"""Reconciliation: what dead processes left. What is alive is adopted, the rest is removed; workspaces stay."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.boot import Boot
from sandbox.engines.kubernetes.gates import WAIT_S, Gate
from sandbox.engines.kubernetes.kubernetes_pool import KubernetesPool
from sandbox.engines.kubernetes.parts import Parts, is_over
from sandbox.engines.kubernetes.reachability import note_reached, note_unreached, unreached
from sandbox.errors import EngineUnavailable, SandboxError
from sandbox.sandbox import LeftSandbox, Owner
from sandbox.transition import OVERDUE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reconciliation:
    """Looks at what there is of an instance, thread by thread. What is shut off by a gate is looked at `later`."""

    parts: Parts
    boot: Boot
    pool: KubernetesPool

    async def reconcile(self) -> Sequence[LeftSandbox]:
        parts = self.parts
        await parts.prepared()
        # A copy that may be old would take what a record has just named for an orphan: Pods first, then records.
        await parts.pods.refresh()
        pods = [*parts.pods.items.values()]
        found = {**await parts.workloads.found(kind="sandbox"), **await parts.workloads.found(kind="carrier")}
        await parts.leases.refresh()
        known = sorted(parts.leases.items.values(), key=lambda one: one.record.created_s, reverse=True)
        noted = {name for one in known for name in (one.record.sandbox, one.record.carrier)}
        await self.pool.reconcile([pod for pod in pods if pod.name not in noted])
        for name, owner in found.items():
            if name not in noted:
                log.info("removing %s, of which no record says", name)
                await parts.workloads.remove(owner, name)
        shut = [one.owner for one in known if not await self._looked(one.owner, wait_s=0)]
        if shut:
            parts.later.append(asyncio.create_task(self._later(shut)))
        return [*parts.attached.adopted(), *unreached(parts)]

    async def _later(self, owners: Collection[Owner]) -> None:
        """Look at threads whose gates were shut: their processes finish soon, or have died and their Leases expire."""
        for owner in owners:
            try:
                await self._looked(owner, wait_s=WAIT_S)
            except SandboxError as error:
                log.info("a thread is left as it is: %s", error)

    async def _looked(self, owner: Owner, *, wait_s: float) -> bool:
        """Return whether the gate of a thread was open, and what is behind it is in order."""
        async with self.parts.gates.entered(owner, wait_s=wait_s) as gate:
            if gate is None:
                return self.parts.site.lease_name(owner) not in self.parts.leases.items
            await self.parts.clean(gate)
            record = gate.record
            if record.state == "stopped" and record.sandbox in self.parts.pods.items:
                await self.parts.workloads.stop(owner, record.sandbox, gate.hold)
            if record.state == "running" and self.parts.lifetime.has_ended(record):
                await self.parts.drop(gate, OVERDUE)  # no process has ended it: its daemon may lie
            elif record.state == "running" and record.sandbox not in self.parts.attached.by_id:
                await self._adopt(gate)
            return True

    async def _adopt(self, gate: Gate) -> None:
        """Adopt a sandbox that no other process has, or remove it if it is not usable.

        One whose Pod runs and that does not answer is left: whether another process reaches it is asked first.
        """
        parts, record = self.parts, gate.record
        one: Attached | None = None
        try:
            one = await parts.attach(gate.owner, record)
            if one.presence.others:
                return
            await self.boot.inspection.introduced(one.channel)
        except (SandboxError, OSError) as error:
            answered = one is not None and one.channel.lost is None
            if not (answered or is_over(error)):
                log.info("sandbox %s does not answer and is left for a later look: %s", record.sandbox, error)
                if not isinstance(error, EngineUnavailable):
                    await note_unreached(parts, gate)
                return
            log.info("sandbox %s is unusable: %s", record.sandbox, error)
            await parts.drop(gate, f"orphaned and unusable: {error}")
        else:
            parts.attached.by_id[record.sandbox], one = one, None
            parts.record(gate.owner, record, "running", "adopted from a lost gateway")
            await note_reached(gate)
        finally:
            if one is not None:
                one.close()
