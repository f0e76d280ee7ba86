"""Creation: how a thread gets its sandbox: one that lives, one that was stopped, or a new one."""

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from sandbox.engines.docker.boot import Blueprint, Boot
from sandbox.engines.docker.engine_setup import BundleBroken
from sandbox.engines.docker.parts import Gate, Parts
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.handshake import introduced
from sandbox.errors import SandboxError, SandboxUnavailable, reason_of
from sandbox.sandbox import Sandbox, SandboxSpec, owner_of
from sandbox.thread_lock import ThreadLock
from sandbox.transition import MADE_OTHERWISE, TAKEN

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Creation:
    """Satisfies Creator, and finds living sandboxes."""

    parts: Parts
    boot: Boot
    stopped: StoppedContainers

    async def create(self, spec: SandboxSpec) -> Sandbox:
        try:
            return await self._create(spec)
        except BundleBroken as error:
            log.warning("making sandbox again after filling the runtime volume: %s", error)
            await self.parts.setup.refill()
            return await self._create(spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        if not self.parts.locks.has(owner_of(spec)):
            return None
        blueprint = await self.boot.blueprint(spec)
        gate = await self.parts.enter_existing(blueprint.owner)
        return None if gate is None else await self._shared(blueprint, gate, replacing=False)

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        blueprint = await self.boot.blueprint(spec)
        gate = await self.parts.enter_existing(blueprint.owner)
        if gate is not None:
            # One that does not fit is removed, and its lock with it.
            return await self._shared(blueprint, gate) or await self._create(spec)
        lock = await self.parts.locks.enter(blueprint.owner)
        if lock.read() is not None:  # another process was faster
            lock.close()
            return await self._create(spec)
        resumed = await self.stopped.resume(blueprint, lock)
        return await self._make(blueprint, lock) if resumed is None else resumed

    async def _make(self, blueprint: Blueprint, lock: ThreadLock) -> Sandbox:
        spec, owner, parts = blueprint.spec, blueprint.owner, self.parts
        sandbox_id = f"{owner[1][:12]}-{parts.new_suffix()}"
        dropped = lock.read()  # what was stopped and did not fit
        try:
            pooled = await parts.claims.pooled_of(owner)
            body = blueprint.body(sandbox_id, pooled=pooled)
            note = parts.note(spec, sandbox_id, blueprint.made(sandbox_id, pooled=pooled), pooled)
            if dropped is not None:
                note = replace(note, ended_processes=dropped.ended_processes)
            # Noted first: after a crash meanwhile, the next process knows what to look for.
            lock.write(note)
        except BaseException:
            lock.retire()
            raise
        parts.record(owner, note, "creating", f"image {spec.image}, runtime {spec.runtime}")
        undo = partial(parts.containers.remove, sandbox_id)
        try:
            channel, posture = await self.boot.started(blueprint, sandbox_id, body, lock, undo)
        except BaseException as error:
            parts.record(owner, note, "failed", reason_of(error))
            raise
        parts.record(owner, note, "running", "started")
        return parts.attached.use(note, spec, channel, posture, lock)

    async def _shared(self, blueprint: Blueprint, gate: Gate, *, replacing: bool = True) -> Sandbox | None:
        """Return the sandbox that a lock notes, if it lives; the lock, behind its gate, goes with it or is closed.

        With `replacing` one that was made otherwise is removed first, unless calls are under way in it.
        """
        spec, parts, owner, lock, note = blueprint.spec, self.parts, gate.owner, gate.lock, gate.note
        attached = parts.attached.by_id.get(note.sandbox)
        mine = None if attached is None else attached.sandbox
        if mine is not None and mine.alive and not (replacing and (mine.spec != spec or mine.outdated)):
            lock.close()
            return mine
        adopted = attached is not None and mine is None
        channel = attached.channel if attached is not None and adopted else parts.channels.to(owner, note.sandbox)
        made = blueprint.made(note.sandbox, pooled=note.held) == note.made
        try:
            if replacing and not (made and not parts.lifetime.is_over(note)) and lock.unused():
                raise SandboxUnavailable(MADE_OTHERWISE)
            posture = await introduced(channel)
            if made:
                blueprint.refuse_weak(note.sandbox, posture)
        except BaseException as error:
            # A cancelled caller leaves it where it is. Of a slow one the process that has it finds out what is wrong: a
            # busy host is no reason to remove it.
            if not isinstance(error, SandboxError) or (_is_slow(error) and not lock.hold_alone()):
                if not adopted:
                    channel.close()
                lock.close()
                raise
            log.info("sandbox %s is replaced: %s", note.sandbox, error)
            channel.close()
            parts.attached.let_go(note.sandbox)
            with closing(lock):
                await parts.containers.remove(note.sandbox)
                lock.retire()
            parts.record(owner, note, "removed", reason_of(error))
            return None
        parts.attached.let_go(note.sandbox)
        log.info("sandbox %s, which lives already, is taken", note.sandbox)
        if not note.thread:
            note = replace(note, thread=spec.thread, image=spec.image, runtime=spec.runtime)
            lock.write(note)
        # The process that made it may have died before it reported that it runs.
        parts.record(owner, note, "running", TAKEN, observed=True)
        return parts.attached.use(note, spec, channel, posture, lock, outdated=not made)


def _is_slow(error: SandboxError) -> bool:
    """Return whether a daemon is there and has only not answered in time."""
    lost = error.__cause__
    return lost is not None and isinstance(lost.__cause__, TimeoutError)
