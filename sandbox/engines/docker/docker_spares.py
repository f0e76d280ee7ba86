"""DockerSpares: containers that are made before anybody asks, and given to a thread by a claim.

A spare is a container as any other, with an id, a channel directory, a workspace volume and user ids of its own, and no
owner in its labels. A lock file, whose gate its maker keeps shut, says that it waits; the kernel opens the gate of a
process that dies. Whose it is once it was claimed, workspace_claims.py tells.

The steps of a claim, all behind the gate of the thread's lock, and what a crash after each leaves:

    the thread's note, `unchecked`     the spare has no claim and its maker is gone: reconcile() removes it
    the claim                          an unchecked note: reconcile(), or the thread's next call, removes both
    the note without `unchecked`       the thread's sandbox, as if it had been made for it
    the spare's lock file goes         the same; a claim counts for more than a lock file
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
from sandbox.engines.docker.runtime_volume import BundleBroken, Ground
from sandbox.engines.docker.spare_checks import refuse_used, settled
from sandbox.engines.pooled_sandbox import SpareKind, SpareRefused, spare_id
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, reason_of
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_FROM_POOL = "it was made ahead, for the pool"


@dataclasses.dataclass(frozen=True, eq=False)
class DockerSpare:
    """Satisfies pooled_sandbox.Spare. `made` is container_config.made_digest(), `lock` its own, behind its gate."""

    sandbox: ChannelSandbox
    kind: SpareKind
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


class DockerSpares(DockerStopping):
    """Satisfies sandbox.engines.pooled_sandbox.Spares, on top of what starts containers."""

    _spares: dict[str, DockerSpare]

    @abstractmethod
    def _keep(self, sandbox: ChannelSandbox, lock: ThreadLock) -> Sandbox: ...

    async def make_spare(self, kind: SpareKind) -> DockerSpare:
        """Return a spare that came up and was verified."""
        ground, image = await self._prepared(), await self._image(kind.image)
        sandbox_id = spare_id(self._new_suffix() + self._new_suffix())
        body = self._config(kind.spec, sandbox_id, ground, image, held=sandbox_id)
        made = config.made_digest(body)
        lock = self._spare_locks.enter(sandbox_id)
        try:
            channel, posture = await self._started(
                kind.spec, sandbox_id, body, ground, image, lock=lock, undo=partial(self._destroy_spare, sandbox_id)
            )
        except BundleBroken:
            self._ground = None  # what comes next looks at it anew
            raise
        sandbox = ChannelSandbox(sandbox_id, kind.spec, channel, posture)
        try:
            spare = DockerSpare(sandbox, kind, made, await settled(sandbox), lock)
        except BaseException:
            channel.close()
            self._in_background(self._drop_spare(sandbox_id, lock))
            raise
        self._spares[sandbox_id] = spare
        return spare

    async def claim(self, spare: DockerSpare, spec: SandboxSpec) -> Sandbox | None:
        """Return a spare as the sandbox of a thread that has neither a sandbox nor files; None for any other thread."""
        if spare.id not in self._spares:
            raise SpareRefused("this sandbox of the pool was claimed or removed already")
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
            spare.id,
            spare.made,
            spec.thread,
            spec.image,
            spec.runtime,
            created_s=self._clock(),
            held=spare.id,
            unchecked=True,
        )
        del self._spares[spare.id]
        try:
            lock.write(note)
        except OSError as error:
            lock.retire()
            await self.discard(spare)
            raise SpareRefused(f"that a sandbox of the pool is claimed cannot be noted: {error}") from error
        claiming = asyncio.ensure_future(self._claims.take(owner, spare.id))
        checking = asyncio.ensure_future(self._checked(spare, spec))
        try:
            # Both at once: of a thread that has files the spare learns nothing, and stays what it was.
            taken = await asyncio.shield(claiming)
            posture = await checking
            if taken:
                lock.write(dataclasses.replace(note, unchecked=False))
        except BaseException as error:
            checking.cancel()
            if not claiming.done() or claiming.cancelled() or claiming.exception() or claiming.result():
                self._told(owner, note, "creating", _FROM_POOL)
                self._told(owner, note, "failed", reason_of(error))
            giving_up = self._in_background(self._give_up(claiming, spare, owner, lock))
            if not isinstance(error, Exception):
                raise
            await asyncio.shield(giving_up)
            if isinstance(error, EngineUnavailable):
                raise
            log.warning("sandbox %s of the pool is not used: %s", spare.id, error)
            raise SpareRefused(str(error)) from error
        if not taken:
            lock.retire()
            self._spares[spare.id] = spare
            return None
        spare.lock.retire()
        self._told(owner, note, "creating", _FROM_POOL)
        self._told(owner, note, "running", "it was ready")
        return self._keep(self._lent(note, spec, spare.sandbox.channel, posture, lock), lock)

    async def discard(self, spare: DockerSpare) -> None:
        """Remove a spare and all that it has; a caller that gives up does not stop it."""
        self._spares.pop(spare.id, None)
        spare.sandbox.close()
        await asyncio.shield(self._in_background(self._drop_spare(spare.id, spare.lock)))

    async def _checked(self, spare: DockerSpare, spec: SandboxSpec) -> pb.Posture:
        """Return what holds a spare; raises SandboxError for one that a thread may not have."""
        ground, image, posture, _ = await asyncio.gather(
            self._prepared(),
            self._image(spec.image),
            introduced(spare.sandbox.channel),
            refuse_used(spare.sandbox, spare.pids),
        )
        self._refuse_other(spare, spec, ground, image)
        refuse_weak(spare.id, posture, spec, host=ground.host, volumes=image.volumes)
        return posture

    def _refuse_other(self, spare: DockerSpare, spec: SandboxSpec, ground: Ground, image: Image) -> None:
        body = self._config(spec, spare.id, ground, image, held=spare.id)
        if spare.kind != SpareKind.of(spec) or config.made_digest(body) != spare.made:
            raise SpareRefused("its image is another one by now, or it was made by another release")

    async def _give_up(
        self, claiming: asyncio.Future[bool], spare: DockerSpare, owner: Owner, lock: ThreadLock
    ) -> None:
        """Leave nothing of a claim that came to nothing; the thread's gate is shut until then."""
        try:
            await over(claiming)
            spare.sandbox.close()
            await self._unclaim(owner, spare.id)
            lock.retire()
            spare.lock.retire()
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", spare.id, error)
        finally:
            lock.close()
            spare.lock.close()

    async def _drop_spare(self, spare: str, lock: ThreadLock) -> None:
        try:
            await self._destroy_spare(spare)
            lock.retire()
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a later look: %s", spare, error)
        finally:
            lock.close()

    async def _destroy_spare(self, spare: str, *, filled: bool = False) -> None:
        """Remove a spare that nobody claimed; `filled` where its volume may have files."""
        await self._destroy(spare)
        if not filled:
            try:
                await self._requests.ask(docker_requests.remove_volume, config.spare_volume(self._instance, spare))
                return
            except SandboxUnavailable as error:
                log.info("the volume of spare %s is emptied first: %s", spare, error)
        await self._claims.give_back(("", spare), spare, filled=True)

    async def _claimed_again(self, spare: str) -> bool:
        """Make the claim anew that somebody removed behind our back; False where no sandbox has the spare's files.

        A claim is used by no container, so whoever removes all unused volumes removes it.
        """
        stopped = ((owner, found.note) for owner in self._stopped.owners() if (found := self._stopped.read(owner)))
        for owner, note in (*self._locks.noted(), *stopped):
            if note.held == spare and not note.unchecked:
                log.warning("the volume that said whose the files of sandbox %s are was gone, and is made anew", spare)
                await self._claims.take(owner, spare)
                return True
        return False

    async def _reconcile_spares(self) -> list[str]:
        """Remove unclaimed spares whose process is gone, with files that a restore left; return those that stay."""
        labels = {config.INSTANCE_LABEL: self._instance, config.POOL_LABEL: ""}
        volumes = await self._requests.ask(docker_requests.labelled_volumes, labels)
        containers = await self._requests.ask(docker_requests.list_containers, labels)
        found = {volume[config.POOL_LABEL] for volume in volumes.values()}
        found |= {container["Labels"][config.POOL_LABEL] for container in containers}
        found |= {*self._spare_locks.ids()}
        claimed = await self._claims.owners() if found else {}
        left = []
        for spare in found - {*claimed, *self._spares}:
            lock = self._spare_locks.try_enter(spare)
            if lock is None:
                continue  # its maker lives
            try:
                # Asked again behind its gate: it may have been claimed, and used, since.
                if await self._claims.owner_of(spare) is None and not await self._claimed_again(spare):
                    log.info("removing the sandbox %s of a pool that is gone", spare)
                    await self._destroy_spare(spare, filled=True)
                lock.retire()
            except SandboxError as error:
                log.warning("the volume of spare %s stays until the next start: %s", spare, error)
                left.append(spare)
            finally:
                lock.close()
        for spare in {*self._spare_locks.ids()} & {*claimed}:
            lock = self._spare_locks.try_enter(spare)
            if lock is not None:
                lock.retire()
        return left
