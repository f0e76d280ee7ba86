"""Creation: how a thread gets its sandbox: one that lives, one that was stopped, or a new one."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial

from sandbox.client.channel import Channel
from sandbox.engines.docker.attached_sandboxes import AttachedSandboxes
from sandbox.engines.docker.blueprint import Blueprint, Blueprints
from sandbox.engines.docker.boot import Boot
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.handshake import introduced
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.runtime_volume import BundleBroken
from sandbox.engines.docker.stopped_containers import StoppedContainers
from sandbox.engines.docker.thread_gates import ThreadGates
from sandbox.errors import SandboxError, SandboxUnavailable, reason_of
from sandbox.owner import owner_of
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import MADE_OTHERWISE

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Creation:
    """Satisfies Creator, and finds living sandboxes."""

    parts: Parts
    setup: EngineSetup
    blueprints: Blueprints
    boot: Boot
    gates: ThreadGates
    attached: AttachedSandboxes
    stopped: StoppedContainers

    async def create(self, spec: SandboxSpec) -> Sandbox:
        try:
            return await self._create(spec)
        except BundleBroken as error:
            log.warning("making sandbox again after filling the runtime volume: %s", error)
            await self.setup.refill()
            return await self._create(spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        """Return the living sandbox of a tenant and thread, however it was made."""
        owner = owner_of(spec)
        if not self.parts.locks.has(owner):
            return None
        blueprint = await self.blueprints.of(spec)
        lock = await self.gates.enter_existing(owner)
        return None if lock is None else await self._shared(blueprint, lock, replace=False)

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        blueprint, locks = await self.blueprints.of(spec), self.parts.locks
        shared = await self._shared(blueprint, await locks.enter(blueprint.owner))
        if shared is not None:
            return shared
        lock = await locks.enter(blueprint.owner)
        if lock.read() is not None:  # another process was faster
            lock.close()
            return await self._create(spec)
        resumed = await self.stopped.resume(blueprint, lock)
        if resumed is None:
            return await self._make(blueprint, lock)
        return self.attached.use(resumed.note, spec, resumed.channel, resumed.posture, lock)

    async def _make(self, blueprint: Blueprint, lock: ThreadLock) -> Sandbox:
        """Make a sandbox behind its thread's gate."""
        spec, owner, record = blueprint.spec, blueprint.owner, self.parts.record
        sandbox_id = f"{owner[1][:12]}-{self.parts.new_suffix()}"
        dropped = lock.read()  # what was stopped and did not fit
        try:
            pooled = await self.parts.claims.pooled_of(owner)
            body = blueprint.body(sandbox_id, pooled=pooled)
            # Noted first: after a crash meanwhile, the next process knows what to look for.
            note = Note(
                sandbox_id,
                blueprint.made(sandbox_id, pooled=pooled),
                spec.thread,
                spec.image,
                spec.runtime,
                created_s=self.parts.lifetime.clock(),
                held=pooled,
                ended_processes=0 if dropped is None else dropped.ended_processes,
            )
            lock.write(note)
        except BaseException:
            lock.retire()
            raise
        record(owner, note, "creating", f"image {spec.image}, runtime {spec.runtime}")
        undo = partial(self.parts.containers.remove, sandbox_id)
        try:
            channel, posture = await self.boot.started(blueprint, sandbox_id, body, lock, undo)
        except BaseException as error:
            record(owner, note, "failed", reason_of(error))
            raise
        record(owner, note, "running", "it came up")
        return self.attached.use(note, spec, channel, posture, lock)

    async def _shared(self, blueprint: Blueprint, lock: ThreadLock, *, replace: bool = True) -> Sandbox | None:
        """Return the sandbox that a lock notes, if it lives; the lock, behind its gate, goes with it or is closed.

        With `replace` one that was made otherwise is removed first, unless calls are under way in it.
        """
        spec, note = blueprint.spec, lock.read()
        if note is not None and note.unchecked:
            await self.gates.give_up_claim(blueprint.owner, note, lock)
            return None
        if note is None:
            lock.close()
            return None
        attached = self.attached.get(note.sandbox)
        mine = None if attached is None else attached.sandbox
        if mine is not None and mine.alive and not (replace and (mine.spec != spec or mine.outdated)):
            lock.close()
            return mine
        adopted = attached is not None and mine is None
        channel = attached.channel if attached is not None and adopted else self.parts.containers.channel(note.sandbox)
        made = blueprint.made(note.sandbox, pooled=note.held) == note.made
        try:
            if replace and not (made and not self.parts.lifetime.is_over(note)) and lock.unused():
                raise SandboxUnavailable(MADE_OTHERWISE)
            posture = await introduced(channel)
            if made:
                blueprint.refuse_weak(note.sandbox, posture)
        except SandboxError as error:
            if _is_slow(error) and not lock.hold_alone():
                # The process that has it finds out what is wrong; a busy host is no reason to remove it.
                if not adopted:
                    channel.close()
                lock.close()
                raise
            await self._replace(blueprint, note, channel, lock, error)
            return None
        except BaseException:  # a cancelled caller leaves it where it is
            if not adopted:
                channel.close()
            lock.close()
            raise
        self.attached.let_go(note.sandbox)
        log.info("sandbox %s, which lives already, is taken", note.sandbox)
        if not note.thread:
            lock.write(dataclasses.replace(note, thread=spec.thread, image=spec.image, runtime=spec.runtime))
        return self.attached.use(note, spec, channel, posture, lock, outdated=not made)

    async def _replace(
        self, blueprint: Blueprint, note: Note, channel: Channel, lock: ThreadLock, error: SandboxError
    ) -> None:
        """Remove a sandbox that is not to be used, behind its gate."""
        log.info("sandbox %s is replaced: %s", note.sandbox, error)
        channel.close()
        self.attached.let_go(note.sandbox)
        try:
            await self.parts.containers.remove(note.sandbox)
        except BaseException:
            lock.close()
            raise
        lock.retire()
        self.parts.record(blueprint.owner, note, "removed", reason_of(error))


def _is_slow(error: SandboxError) -> bool:
    """Return whether a daemon is there and has only not answered in time."""
    lost = error.__cause__
    return lost is not None and isinstance(lost.__cause__, TimeoutError)
