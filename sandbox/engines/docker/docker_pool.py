"""DockerPool: containers that are made before a thread asks, and given to a thread by a claim.

A pooled sandbox is a container as any other, with an id, a channel directory, a workspace volume and user ids of its
own, and no owner in its labels. A lock file, whose gate its maker keeps shut, says that it waits; the kernel opens the
gate of a process that dies. Who owns it once it was claimed is in workspace_claims.py.

The steps of a claim, all behind the gate of the thread's lock, and what a crash after each leaves:

    the thread's note, `unchecked`     the sandbox has no claim and its maker is gone: reconcile() removes it
    the claim                          an unchecked note: reconcile(), or the thread's next call, removes both
    the note without `unchecked`       the thread's sandbox, as if it had been made for it
    the pool's lock file goes          the same; a claim counts for more than a lock file
"""

import asyncio
import dataclasses
import logging
from functools import partial

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.background import over
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.boot import Blueprint, Boot
from sandbox.engines.docker.engine_setup import BundleBroken
from sandbox.engines.docker.lock_directory import let_go, retired
from sandbox.engines.docker.parts import Parts
from sandbox.engines.handshake import introduced
from sandbox.engines.pooled_checks import refuse_used, settled
from sandbox.engines.pooled_sandbox import PooledRefused, PooledSandbox, PoolKind, pooled_id
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, reason_of
from sandbox.sandbox import Owner, Sandbox, SandboxSpec, made_digest, owner_of
from sandbox.thread_lock import Note, ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_FROM_POOL = "it was made ahead, for the pool"


@dataclasses.dataclass(frozen=True, eq=False)
class DockerPooled(PooledSandbox):
    """`made` is its made_digest(), `lock` its own, behind its gate."""

    made: str
    lock: ThreadLock


@dataclasses.dataclass(frozen=True)
class DockerPool:
    """Satisfies PoolSource."""

    parts: Parts
    boot: Boot
    unclaimed: dict[str, DockerPooled] = dataclasses.field(default_factory=dict)

    async def make_pooled(self, kind: PoolKind) -> DockerPooled:
        blueprint = await self.boot.blueprint(kind.spec)
        sandbox_id = pooled_id(self.parts.new_suffix() + self.parts.new_suffix())
        body = blueprint.body(sandbox_id, pooled=sandbox_id)
        made = made_digest(body)
        lock = self.parts.pool_locks.enter_new(sandbox_id)
        undo = partial(self._destroy, sandbox_id)
        try:
            channel, posture = await self.boot.started(blueprint, sandbox_id, body, lock, undo)
        except BundleBroken:
            self.parts.setup.forget()
            raise
        sandbox = ChannelSandbox(sandbox_id, kind.spec, channel, posture)
        try:
            pooled = DockerPooled(sandbox, kind, await settled(sandbox), made, lock)
        except BaseException:
            channel.close()
            self.parts.background.begin(self._drop(sandbox_id, lock))
            raise
        self.unclaimed[sandbox_id] = pooled
        return pooled

    async def claim(self, pooled: DockerPooled, spec: SandboxSpec) -> Sandbox | None:
        if pooled.id not in self.unclaimed:
            raise PooledRefused("this sandbox of the pool was claimed or removed already")
        owner = owner_of(spec)
        lock = self._locked_free(owner)
        if lock is None:
            return None
        note = dataclasses.replace(self.parts.note(spec, pooled.id, pooled.made, pooled.id), unchecked=True)
        del self.unclaimed[pooled.id]
        try:
            lock.write(note)
        except OSError as error:
            lock.retire()
            await self.discard(pooled)
            raise PooledRefused(f"that a sandbox of the pool is claimed cannot be noted: {error}") from error
        taken = await self._taken(pooled, spec, note, lock)
        if taken is None:
            lock.retire()
            self.unclaimed[pooled.id] = pooled
            return None
        pooled.lock.retire()
        self.parts.record(owner, note, "creating", _FROM_POOL)
        self.parts.record(owner, note, "running", "ready in the pool")
        return self.parts.attached.use(note, spec, *taken, lock)

    async def discard(self, pooled: DockerPooled) -> None:
        """Remove a pooled sandbox and all that it has, even if the caller is cancelled."""
        self.unclaimed.pop(pooled.id, None)
        pooled.sandbox.close()
        await asyncio.shield(self.parts.background.begin(self._drop(pooled.id, pooled.lock)))

    async def discard_all(self) -> None:
        await asyncio.gather(*(self.discard(pooled) for pooled in [*self.unclaimed.values()]))

    def close(self) -> None:
        for pooled in self.unclaimed.values():
            pooled.sandbox.close()
            pooled.lock.close()
        self.parts.pool_locks.close()

    def _locked_free(self, owner: Owner) -> ThreadLock | None:
        """Return the lock, behind its gate, of a thread without a sandbox; None for any other thread."""
        lock = self.parts.locks.try_enter(owner)  # None while another caller makes or removes its sandbox
        if lock is not None and (lock.read() is not None or self.parts.stopped.has(owner)):
            let_go(lock)
            return None
        return lock

    async def _taken(
        self, pooled: DockerPooled, spec: SandboxSpec, note: Note, lock: ThreadLock
    ) -> tuple[Channel, pb.Posture] | None:
        """Claim and check a pooled sandbox; return its channel and posture, or None where the thread has files."""
        owner = owner_of(spec)
        claiming = asyncio.ensure_future(self.parts.claims.take(owner, pooled.id))
        checking = asyncio.ensure_future(self._checked(pooled, spec))
        try:
            # Both at once: of a thread that has files the pooled sandbox learns nothing, and stays what it was.
            taken = await asyncio.shield(claiming)
            posture, channel = await checking, pooled.sandbox.channel
            if taken:
                channel = await self.parts.channels.claimed(owner, pooled.id, channel)
                lock.write(dataclasses.replace(note, unchecked=False))
        except BaseException as error:
            checking.cancel()
            if not claiming.done() or claiming.cancelled() or claiming.exception() or claiming.result():
                self.parts.record(owner, note, "creating", _FROM_POOL)
                self.parts.record(owner, note, "failed", reason_of(error))
            giving_up = self.parts.background.begin(self._give_up(claiming, pooled, owner, lock))
            if not isinstance(error, Exception):
                raise
            await asyncio.shield(giving_up)
            if isinstance(error, EngineUnavailable):
                raise
            log.warning("sandbox %s of the pool is not used: %s", pooled.id, error)
            raise PooledRefused(str(error)) from error
        return (channel, posture) if taken else None

    async def _checked(self, pooled: DockerPooled, spec: SandboxSpec) -> pb.Posture:
        """Return the posture of a pooled sandbox; raises SandboxError for one that the thread may not have."""
        blueprint, posture, _ = await asyncio.gather(
            self.boot.blueprint(spec), introduced(pooled.sandbox.channel), refuse_used(pooled.sandbox, pooled.pids)
        )
        refuse_other(pooled, blueprint)
        blueprint.refuse_weak(pooled.id, posture)
        return posture

    async def _give_up(
        self, claiming: asyncio.Future[bool], pooled: DockerPooled, owner: Owner, lock: ThreadLock
    ) -> None:
        """Remove what a failed claim leaves; the thread's gate is shut until then."""
        with retired(pooled.id, lock, pooled.lock):
            await over(claiming)
            pooled.sandbox.close()
            await self.parts.unclaim(owner, pooled.id)

    async def _drop(self, pooled: str, lock: ThreadLock) -> None:
        with retired(pooled, lock):
            await self._destroy(pooled)

    async def _destroy(self, pooled: str, *, filled: bool = False) -> None:
        """Remove an unclaimed sandbox; `filled` where its volume may have files."""
        await self.parts.containers.remove(pooled)
        if not filled:
            try:
                await self.parts.claims.remove_empty(pooled)
                return
            except SandboxUnavailable as error:
                log.info("the volume of pooled sandbox %s is emptied first: %s", pooled, error)
        await self.parts.claims.give_back(("", pooled), pooled, filled=True)

    async def reconcile(self) -> list[str]:
        """Remove unclaimed sandboxes whose process is gone, with files that a restore left; return those that stay.

        Claims to files that are gone are removed too: a process died while it removed both.
        """
        parts, locks = self.parts, self.parts.pool_locks
        locked = locks.ids()
        volumes = await parts.claims.pooled_volumes()
        found = {*locked, *volumes}
        found |= {one["Labels"][config.POOL_LABEL] for one in await parts.containers.labelled({config.POOL_LABEL: ""})}
        claimed = await parts.claims.owners()
        for pooled, owner in claimed.items():
            if pooled not in volumes and (free := self._locked_free(owner)) is not None:
                try:
                    await parts.claims.forget_lost(owner, pooled)
                except SandboxError as error:
                    log.warning("a claim to files that are gone stays for now: %s", error)
                finally:
                    let_go(free)
        left = []
        for pooled in (found - {*claimed} | locked) - {*self.unclaimed}:
            lock = locks.try_enter(pooled, make=pooled not in locked)
            if lock is None:
                continue  # its maker lives, or is done with it
            try:
                # Asked again behind its gate: it may have been claimed, and used, since.
                known = pooled in claimed or await parts.claims.owner_of(pooled) is not None
                if not known and not await self._claimed_again(pooled):
                    log.info("removing the sandbox %s of a pool that is gone", pooled)
                    await self._destroy(pooled, filled=True)
                lock.retire()
            except SandboxError as error:
                log.warning("the volume of pooled sandbox %s stays until the next start: %s", pooled, error)
                left.append(pooled)
            finally:
                if pooled not in locked:  # made here: what is left of the sandbox is found without it
                    lock.retire()
                lock.close()
        return left

    async def _claimed_again(self, pooled: str) -> bool:
        """Make a claim anew that an operator removed; False where no sandbox has the pooled sandbox's files.

        A claim is used by no container, so an operator who prunes unused volumes removes it.
        """
        files = self.parts.stopped
        alive = ((look.owner, look.note) for look in self.parts.locks.looked_at())
        stopped = ((owner, found.note) for owner in files.owners() if (found := files.read(owner)))
        for owner, note in (*alive, *stopped):
            if note.held == pooled and not note.unchecked:
                log.warning("the volume with the owner of sandbox %s was missing and has been recreated", pooled)
                await self.parts.claims.take(owner, pooled)
                return True
        return False


def refuse_other(pooled: DockerPooled, blueprint: Blueprint) -> None:
    """Raise PooledRefused for a pooled sandbox that was not made by the blueprint."""
    if pooled.kind != PoolKind.of(blueprint.spec) or blueprint.made(pooled.id, pooled=pooled.id) != pooled.made:
        raise PooledRefused("its image is another one by now, or it was made by another release")
