"""Creation: how a thread gets its sandbox: one that lives, one that was stopped, or a new one."""

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.boot import Boot
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.kubernetes_requests import CLAIMS
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.records import Record
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, reason_of
from sandbox.sandbox import Sandbox, SandboxSpec, owner_of
from sandbox.transition import MADE_OTHERWISE, STARTED_AGAIN, TAKEN

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Creation:
    """Satisfies Creator, and finds living sandboxes."""

    parts: Parts
    boot: Boot

    async def create(self, spec: SandboxSpec) -> Sandbox:
        owner = owner_of(spec)
        at_hand = self.parts.attached.of(owner)
        if at_hand is not None and at_hand.spec == spec and not at_hand.outdated:
            return at_hand
        await self.parts.prepared()
        async with self.parts.gates.entered(owner, make=True) as gate:
            assert gate is not None  # noqa: S101 - it is made
            await self.parts.clean(gate)
            if gate.record.state == "running":
                found = await self._shared(gate, spec)
                if found is not None:
                    return found
            if gate.record.state == "stopped" and not self._fits(gate, spec):
                record = gate.record
                log.info("stopped sandbox %s is replaced: %s", record.sandbox, MADE_OTHERWISE)
                # What ended with it is reported all the same.
                await self.parts.drop(gate, MADE_OTHERWISE, ended_processes=record.ended_processes)
            return await self._start(gate, spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        await self.parts.prepared()
        owner = owner_of(spec)
        async with self.parts.gates.entered(owner) as gate:
            if gate is None or gate.record.state != "running":
                return None
            return await self._shared(gate, spec, replacing=False)

    def _fits(self, gate: Gate, spec: SandboxSpec) -> bool:
        record = gate.record
        return self.parts.made(spec, gate.owner, record) == record.made and not self.parts.lifetime.is_over(record)

    async def _start(self, gate: Gate, spec: SandboxSpec) -> Sandbox:
        """Start a new sandbox, or the stopped one again; what does not come up is removed in the background."""
        parts, owner = self.parts, gate.owner
        before, resumed = gate.record, gate.record.state == "stopped"
        await parts.namespaces.ready(spec)
        try:
            if resumed:
                record = replace(gate.record, epoch=parts.new_epoch(), pod="")
                # The process that was to start or stop it may have died.
                await parts.workloads.stop(owner, record.sandbox)
            else:
                record = await self._noted(gate, spec)
            body = manifests.pod(parts.site, spec, owner, record.sandbox, record.claim)
            one = await self.boot.started(owner, record, body)
            try:
                posture = await self.boot.verified(one, spec)
                since_s = parts.lifetime.clock()
                running = replace(record, state="running", since_s=since_s, ended_processes=0, fresh=False)
                record = await gate.finish(replace(running, pod=one.pod_uid))
            except BaseException:
                one.close()
                raise
        except BaseException as error:
            gate.handed_over = True
            undoing = parts.background.begin(self._undone(gate, before, error, resumed=resumed))
            if isinstance(error, Exception):
                await asyncio.shield(undoing)
            raise
        parts.record(owner, record, "running", STARTED_AGAIN if resumed else "started")
        return parts.attached.use(one, replace(record, ended_processes=before.ended_processes), spec, posture)

    async def _noted(self, gate: Gate, spec: SandboxSpec) -> Record:
        """Record what is about to be made, and make the claim of the thread's files if it has none."""
        parts, owner = self.parts, gate.owner
        claim = gate.record.claim or await parts.claim_left_of(owner)
        record = replace(
            gate.record,
            state="creating",
            sandbox=f"{owner[1][:12]}-{secrets.token_hex(4)}",
            claim=claim or parts.site.name("workspace", secrets.token_hex(8)),
            fresh=not claim,
            epoch=parts.new_epoch(),
            created_s=parts.lifetime.clock(),
            thread=spec.thread,
            image=spec.image,
            runtime=spec.runtime,
        )
        # Noted first: after a crash meanwhile, the next process knows what to look for.
        record = await gate.write(replace(record, made=parts.made(spec, owner, record)))
        parts.record(owner, record, "creating", f"image {spec.image}, runtime {spec.runtime}")
        if record.fresh:
            await parts.namespaces.create(CLAIMS, manifests.claim(parts.site, owner, record.claim, spec))
        return record

    async def _undone(self, gate: Gate, before: Record, error: BaseException, *, resumed: bool) -> None:
        """Remove a sandbox that did not come up, whether or not its creator waits for that, and leave the gate.

        One that was stopped stays stopped where the caller gave up or the cluster did not answer.
        """
        parts, record = self.parts, gate.record
        try:
            await gate.write(record)  # or another process has taken over, and what has these names may be its own
            if resumed:
                if isinstance(error, Exception) and not isinstance(error, EngineUnavailable):
                    await parts.workloads.remove(gate.owner, record.sandbox)
                    await gate.write(record.without_sandbox())
                    parts.record(gate.owner, record, "removed", reason_of(error))
                else:
                    await parts.workloads.stop(gate.owner, record.sandbox)
            elif record.state == "creating":
                await parts.remove_unfinished(gate.owner, record)
                # Back to what it was before: a thread without files has no record.
                await gate.write(before if before.claim else Record())
                parts.record(gate.owner, record, "failed", reason_of(error))
        except SandboxError as failure:
            log.warning("sandbox %s could not be removed, a later look will: %s", record.sandbox, failure)
        finally:
            await parts.gates.left(gate)

    async def _shared(self, gate: Gate, spec: SandboxSpec, *, replacing: bool = True) -> Sandbox | None:
        """Return the sandbox that a record notes, if it lives; one that does not is removed.

        With `replacing` one that was made otherwise is removed first, unless calls are under way in it.
        """
        parts, record = self.parts, gate.record
        mine = parts.attached.by_id.get(record.sandbox)
        usable = None if mine is None else mine.usable
        if usable is not None and not (replacing and (usable.spec != spec or usable.outdated)):
            return usable
        fits = self._fits(gate, spec)
        made = parts.made(spec, gate.owner, record) == record.made
        one: Attached | None = mine
        try:
            if one is None or one.channel.lost is not None:
                one = await parts.attach(gate.owner, record)
            if replacing and not fits and await one.presence.retire(attached=True) is None:
                raise SandboxUnavailable(MADE_OTHERWISE)
            posture = await self.boot.inspection.introduced(one.channel)
            if made:
                self.boot.inspection.refuse_weak(record.sandbox, posture, spec)
        except BaseException as error:
            if one is not None and one is not mine:
                one.close()
            if not isinstance(error, SandboxError | OSError):
                raise
            log.info("sandbox %s is replaced: %s", record.sandbox, error)
            untaken = 0 if mine is None else mine.uses.ended_processes
            await parts.drop(gate, reason_of(error), ended_processes=untaken)
            return None
        if one is not mine:
            parts.attached.let_go(record.sandbox)
            log.info("sandbox %s, which lives already, is taken", record.sandbox)
            parts.record(gate.owner, record, "running", TAKEN, observed=True)
        return parts.attached.use(one, record, spec, posture, outdated=not made)
