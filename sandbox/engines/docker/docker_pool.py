"""DockerPool: containers that are made before anybody asks, and given to a thread by a claim.

A pooled sandbox is a container as any other, with an id, a channel directory, a workspace volume and user ids of its
own, and no owner in its labels. A lock file, whose gate its maker keeps shut, says that it waits; the kernel opens the
gate of a process that dies. Whose it is once it was claimed, workspace_claims.py tells.

The steps of a claim, all behind the gate of the thread's lock, and what a crash after each leaves:

    the thread's note, `unchecked`     the sandbox has no claim and its maker is gone: reconcile() removes it
    the claim                          an unchecked note: reconcile(), or the thread's next call, removes both
    the note without `unchecked`       the thread's sandbox, as if it had been made for it
    the pool's lock file goes          the same; a claim counts for more than a lock file
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from abc import abstractmethod
from functools import partial

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_ground import Image
from sandbox.engines.docker.docker_starting import over
from sandbox.engines.docker.docker_stopping import DockerStopping
from sandbox.engines.docker.handshake import introduced, refuse_weak
from sandbox.engines.docker.pooled_checks import refuse_used, settled
from sandbox.engines.docker.runtime_volume import BundleBroken, Ground
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind, pooled_id
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, reason_of
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_FROM_POOL = "it was made ahead, for the pool"


@dataclasses.dataclass(frozen=True, eq=False)
class DockerPooled:
    """Satisfies PooledSandbox. `made` is container_config.made_digest(), `lock` its own, behind its gate."""

    sandbox: ChannelSandbox
    kind: PoolKind
    made: str
    pids: int
    lock: ThreadLock

    @property
    def id(self) -> str:
        """The id of its sandbox, which it keeps."""
        return self.sandbox.id

    @property
    def alive(self) -> bool:
        """Whether its daemon has kept the protocol so far."""
        return self.sandbox.alive

    async def ping(self) -> bool:
        """Return whether the daemon answers within a second."""
        return await self.sandbox.ping()


class DockerPool(DockerStopping):
    """Satisfies sandbox.engines.pooled_sandbox.PoolSource, on top of what starts containers."""

    _pooled: dict[str, DockerPooled]

    @abstractmethod
    def _keep(self, sandbox: ChannelSandbox, lock: ThreadLock) -> Sandbox: ...

    async def make_pooled(self, kind: PoolKind) -> DockerPooled:
        """Return a pooled sandbox that came up and was verified."""
        ground, image = await self._prepared(), await self._image(kind.image)
        sandbox_id = pooled_id(self._new_suffix() + self._new_suffix())
        body = self._config(kind.spec, sandbox_id, ground, image, held=sandbox_id)
        made = config.made_digest(body)
        lock = self._pool_locks.enter(sandbox_id)
        try:
            channel, posture = await self._started(
                kind.spec, sandbox_id, body, ground, image, lock=lock, undo=partial(self._destroy_pooled, sandbox_id)
            )
        except BundleBroken:
            self._ground = None  # what comes next looks at it anew
            raise
        sandbox = ChannelSandbox(sandbox_id, kind.spec, channel, posture)
        try:
            pooled = DockerPooled(sandbox, kind, made, await settled(sandbox), lock)
        except BaseException:
            channel.close()
            self._in_background(self._drop_pooled(sandbox_id, lock))
            raise
        self._pooled[sandbox_id] = pooled
        return pooled

    async def claim(self, pooled: DockerPooled, spec: SandboxSpec) -> Sandbox | None:
        """Return a pooled sandbox as that of a thread without sandbox or files; None for any other thread."""
        if pooled.id not in self._pooled:
            raise PooledRefused("this sandbox of the pool was claimed or removed already")
        owner = owner_of(spec)
        lock = self._locks.try_enter(owner)
        if lock is None:
            return None  # somebody is at work there, and not for nothing
        if lock.read() is not None:
            lock.close()
            return None
        if self._stopped.has(owner):
            lock.retire()
            return None
        note = Note(
            pooled.id,
            pooled.made,
            spec.thread,
            spec.image,
            spec.runtime,
            created_s=self._clock(),
            held=pooled.id,
            unchecked=True,
        )
        del self._pooled[pooled.id]
        try:
            lock.write(note)
        except OSError as error:
            lock.retire()
            await self.discard(pooled)
            raise PooledRefused(f"that a sandbox of the pool is claimed cannot be noted: {error}") from error
        claiming = asyncio.ensure_future(self._claims.take(owner, pooled.id))
        checking = asyncio.ensure_future(self._checked(pooled, spec))
        try:
            # Both at once: of a thread that has files the pooled sandbox learns nothing, and stays what it was.
            taken = await asyncio.shield(claiming)
            posture = await checking
            if taken:
                lock.write(dataclasses.replace(note, unchecked=False))
        except BaseException as error:
            checking.cancel()
            if not claiming.done() or claiming.cancelled() or claiming.exception() or claiming.result():
                self._told(owner, note, "creating", _FROM_POOL)
                self._told(owner, note, "failed", reason_of(error))
            giving_up = self._in_background(self._give_up(claiming, pooled, owner, lock))
            if not isinstance(error, Exception):
                raise
            await asyncio.shield(giving_up)
            if isinstance(error, EngineUnavailable):
                raise
            log.warning("sandbox %s of the pool is not used: %s", pooled.id, error)
            raise PooledRefused(str(error)) from error
        if not taken:
            lock.retire()
            self._pooled[pooled.id] = pooled
            return None
        pooled.lock.retire()
        self._told(owner, note, "creating", _FROM_POOL)
        self._told(owner, note, "running", "it was ready")
        return self._keep(self._lent(note, spec, pooled.sandbox.channel, posture, lock), lock)

    async def discard(self, pooled: DockerPooled) -> None:
        """Remove a pooled sandbox and all that it has; a caller that gives up does not stop it."""
        self._pooled.pop(pooled.id, None)
        pooled.sandbox.close()
        await asyncio.shield(self._in_background(self._drop_pooled(pooled.id, pooled.lock)))

    async def _checked(self, pooled: DockerPooled, spec: SandboxSpec) -> pb.Posture:
        """Return what holds a pooled sandbox; raises SandboxError for one that a thread may not have."""
        ground, image, posture, _ = await asyncio.gather(
            self._prepared(),
            self._image(spec.image),
            introduced(pooled.sandbox.channel),
            refuse_used(pooled.sandbox, pooled.pids),
        )
        self._refuse_other(pooled, spec, ground, image)
        refuse_weak(pooled.id, posture, spec, host=ground.host, volumes=image.volumes)
        return posture

    def _refuse_other(self, pooled: DockerPooled, spec: SandboxSpec, ground: Ground, image: Image) -> None:
        body = self._config(spec, pooled.id, ground, image, held=pooled.id)
        if pooled.kind != PoolKind.of(spec) or config.made_digest(body) != pooled.made:
            raise PooledRefused("its image is another one by now, or it was made by another release")

    async def _give_up(
        self, claiming: asyncio.Future[bool], pooled: DockerPooled, owner: Owner, lock: ThreadLock
    ) -> None:
        """Leave nothing of a claim that came to nothing; the thread's gate is shut until then."""
        try:
            await over(claiming)
            pooled.sandbox.close()
            await self._unclaim(owner, pooled.id)
            lock.retire()
            pooled.lock.retire()
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", pooled.id, error)
        finally:
            lock.close()
            pooled.lock.close()

    async def _drop_pooled(self, pooled: str, lock: ThreadLock) -> None:
        try:
            await self._destroy_pooled(pooled)
            lock.retire()
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", pooled, error)
        finally:
            lock.close()

    async def _destroy_pooled(self, pooled: str, *, filled: bool = False) -> None:
        """Remove a pooled sandbox that nobody claimed; `filled` where its volume may have files."""
        await self._destroy(pooled)
        if not filled:
            try:
                await self._requests.ask(docker_requests.remove_volume, config.pooled_volume(self._instance, pooled))
                return
            except SandboxUnavailable as error:
                log.info("the volume of spare %s is emptied first: %s", pooled, error)
        await self._claims.give_back(("", pooled), pooled, filled=True)

    async def _claimed_again(self, pooled: str) -> bool:
        """Make the claim anew that an operator removed; False where no sandbox has the pooled sandbox's files.

        A claim is used by no container, so whoever removes all unused volumes removes it.
        """
        stopped = ((owner, found.note) for owner in self._stopped.owners() if (found := self._stopped.read(owner)))
        for owner, note in (*self._locks.noted(), *stopped):
            if note.held == pooled and not note.unchecked:
                log.warning("the volume that said whose the files of sandbox %s are was gone, and is made anew", pooled)
                await self._claims.take(owner, pooled)
                return True
        return False

    async def _reconcile_pool(self) -> list[str]:
        """Remove unclaimed sandboxes whose process is gone, with files that a restore left; return those that stay."""
        labels = {config.INSTANCE_LABEL: self._instance, config.POOL_LABEL: ""}
        volumes = await self._requests.ask(docker_requests.labelled_volumes, labels)
        containers = await self._requests.ask(docker_requests.list_containers, labels)
        found = {volume[config.POOL_LABEL] for volume in volumes.values()}
        found |= {container["Labels"][config.POOL_LABEL] for container in containers}
        found |= {*self._pool_locks.ids()}
        claimed = await self._claims.owners() if found else {}
        left = []
        for pooled in found - {*claimed, *self._pooled}:
            lock = self._pool_locks.try_enter(pooled)
            if lock is None:
                continue  # its maker lives
            try:
                # Asked again behind its gate: it may have been claimed, and used, since.
                if await self._claims.owner_of(pooled) is None and not await self._claimed_again(pooled):
                    log.info("removing the sandbox %s of a pool that is gone", pooled)
                    await self._destroy_pooled(pooled, filled=True)
                lock.retire()
            except SandboxError as error:
                log.warning("the volume of spare %s stays until the next start: %s", pooled, error)
                left.append(pooled)
            finally:
                lock.close()
        for pooled in {*self._pool_locks.ids()} & {*claimed}:
            lock = self._pool_locks.try_enter(pooled)
            if lock is not None:
                lock.retire()
        return left
