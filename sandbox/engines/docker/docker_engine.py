"""DockerEngine: sandboxes as containers of a Docker engine.

What is inside a container is decided in container_config.py, what is said to Docker in docker_requests.py; here is how
a sandbox comes up, is verified, is shared by processes, outlives them and goes away.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.adopted_sandbox import AdoptedSandbox
from sandbox.engines.docker.docker_ground import Image
from sandbox.engines.docker.docker_pool import DockerPooled
from sandbox.engines.docker.docker_reconciling import DockerReconciling
from sandbox.engines.docker.docker_requests import EngineFacts
from sandbox.engines.docker.handshake import introduced, refuse_weak
from sandbox.engines.docker.runtime_volume import BundleBroken, Ground, release_runtime
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable, reason_of
from sandbox.owner import Owner, owner_by_name, owner_of
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import CALLS_LOST, MADE_OTHERWISE, OVERDUE, ROOM, STOPPING, UNUSED, Tell, nobody

__all__ = ["DockerEngine", "EngineFacts"]

log = logging.getLogger(__name__)


class DockerEngine(DockerReconciling):
    """Satisfies sandbox.engines.engine.Engine and sandbox.engines.pooled_sandbox.PoolSource.

    `channel_root` must be the same path for this process and for the engine.

    `instance` labels what belongs to this gateway and survives its restarts; processes that share it and the engine
    must share `channel_root`, where the locks are by which they know of each other. `base_url` is the engine's
    address, None means DOCKER_HOST or the default socket; `named_in` is where that is written, for errors.
    """

    def __init__(
        self,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str = "airlock-runtime",
        base_url: str | None = None,
        named_in: str = "base_url",
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
        lifetime_s: float | None = None,
        tell: Tell = nobody,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            instance=instance,
            channel_root=channel_root,
            runtime_image=runtime_image,
            base_url=base_url,
            named_in=named_in,
            new_suffix=new_suffix,
            lifetime_s=lifetime_s,
            tell=tell,
            clock=clock,
        )
        self._sandboxes: dict[str, ChannelSandbox] = {}
        self._left: dict[str, AdoptedSandbox] = {}
        self._pooled: dict[str, DockerPooled] = {}

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of a tenant and thread: one that lives and was made in the very same way, or a new one.

        A new one is started, greeted, its posture verified.
        """
        try:
            return await self._create(spec)
        except BundleBroken as error:
            log.warning("making sandbox again after filling the runtime volume: %s", error)
            if self._ground is not None:
                # Only an empty one is filled, and one that is half filled is not empty.
                await self._requests.ask(release_runtime, self._ground.runtime.volume)
            self._ground = None
            return await self._create(spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        """Return the living sandbox of a tenant and thread, however it was made."""
        if not self.has(spec):
            return None
        ground, image = await self._prepared(), await self._image(spec.image)
        lock = await self._enter_existing(owner_of(spec))
        return None if lock is None else await self._shared(spec, image, ground, lock, replace=False)

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether a tenant and thread have a lock file."""
        return self._locks.has(owner_of(spec))

    def owners(self) -> Sequence[Owner]:
        """Return whose lock files there are, the longest unused first."""
        return self._locks.owners()

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        """Remove a thread's sandbox if calls are under way in it; return whether there were any.

        With `overdue` only one that is past its lifetime.
        """
        owner = owner_by_name(tenant, thread)
        lock = await self._enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is None or note is None:
            return False
        try:
            if lock.unused() or (overdue and not self._is_old(note)):
                return False
            log.warning("sandbox %s is removed with the calls that are under way in it", note.sandbox)
            await self._destroy(note.sandbox)
            lock.retire()
            self._told(owner, note, "removed", OVERDUE if overdue else CALLS_LOST)
            return True
        finally:
            lock.close()

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        """Remove or stop the sandbox that was used longest ago and is not in use."""
        end = self._stop_unused if stop else self._remove_unused
        for owner in self._locks.owners():
            lock = self._locks.try_enter(owner) if tenant in (None, owner[0]) else None
            note = lock.read() if lock is not None else None
            if lock is None:
                continue
            if note is None or note.unchecked:
                lock.close()
            elif await end(owner, lock, note, ROOM):
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        """Stop a sandbox that nobody uses; one that another process has is only let go of. None is no error."""
        held = self._sandboxes.get(sandbox_id) or self._left.get(sandbox_id)
        if held is None or held.lock is None:
            await self.remove(sandbox_id)
            return False
        owner = owner_of(held.spec) if isinstance(held, ChannelSandbox) else held.owner
        self._sandboxes.pop(sandbox_id, None)
        self._left.pop(sandbox_id, None)
        lock = held.lock
        try:
            await self._locks.shut(lock)
            note = lock.read()
            if note is None or note.sandbox != sandbox_id or lock.gone or not lock.hold_alone():
                return False
            stopped = await self._stop_or_remove(owner, note, held.channel, UNUSED)
            lock.retire()
            return stopped
        finally:
            held.channel.close()
            lock.close()

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        """Remove a sandbox, not its workspace; one that another process has is only let go of. None is no error."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        left = self._left.pop(sandbox_id, None)
        lock, owner = None, None
        if self._closed:
            reason = STOPPING
        elif sandbox is not None and not sandbox.alive:
            reason = f"it was lost: {sandbox.channel.lost}"
        elif sandbox is not None and sandbox.outdated:
            reason = MADE_OTHERWISE
        if sandbox is not None:
            sandbox.close()
            lock, owner = sandbox.lock, owner_of(sandbox.spec)
        if left is not None:
            left.channel.close()
            lock, owner = left.lock, left.owner
        if lock is not None and owner is not None:
            await self._locks.shut(lock)
        else:
            owner = await self._owner_of(sandbox_id)
            if owner is None:
                return
            stopped = self._stopped.read(owner)
            if stopped is not None and stopped.note.sandbox == sandbox_id:
                await self._remove_stopped(owner, reason)
                return
            lock = await self._locks.enter(owner)
        await self._remove_unheld(owner, lock, sandbox_id, reason)

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every sandbox that no other process has, and the runtime volume if no gateway uses it.

        With `keep_sandboxes` they live on, for the next process of this instance to take over. Closing again is no
        error.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._removals:
                await asyncio.wait(self._removals)
            if self._requests.connected:
                await asyncio.gather(*(self.discard(pooled) for pooled in [*self._pooled.values()]))
                if not keep_sandboxes:
                    running = [one for one, owner in await self._owned() if not self._rests(one, owner)]
                    await asyncio.gather(*(self.remove(one["Labels"][config.SANDBOX_LABEL]) for one in running))
                alone = self._last_standing or (self._standing is not None and await self._stands_alone())
                if alone and not keep_sandboxes:
                    await self._remove_all_stopped()
                if alone and self._ground is not None:
                    await self._requests.ask(release_runtime, self._ground.runtime.volume)
        except EngineUnavailable as error:
            log.warning("sandboxes stay until the next start: %s", error)
        finally:
            for sandbox in self._sandboxes.values():
                sandbox.close()
                if sandbox.lock is not None:
                    sandbox.lock.close()
            for left in self._left.values():
                left.channel.close()
                left.lock.close()
            for pooled in self._pooled.values():
                pooled.sandbox.close()
                pooled.lock.close()
            if self._standing is not None:
                self._standing.close()
            self._pool_locks.close()
            self._locks.close()
            self._stopped.close()
            self._requests.close()

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        ground = await self._prepared()
        image = await self._image(spec.image)
        shared = await self._shared(spec, image, ground, await self._locks.enter(owner_of(spec)))
        if shared is not None:
            return shared
        lock = await self._locks.enter(owner_of(spec))
        if lock.read() is not None:  # another process was faster
            lock.close()
            return await self._create(spec)
        resumed = await self._resumed(spec, image, ground, lock)
        return await self._make(spec, image, ground, lock) if resumed is None else self._keep(resumed, lock)

    async def _make(self, spec: SandboxSpec, image: Image, ground: Ground, lock: ThreadLock) -> Sandbox:
        """Make a sandbox behind its thread's gate."""
        owner = owner_of(spec)
        sandbox_id = f"{owner[1][:12]}-{self._new_suffix()}"
        dropped = lock.read()  # what _resumed() found and did not start
        try:
            held = await self._claims.held_by(owner)
            body = self._config(spec, sandbox_id, ground, image, held=held)
            # Noted first: after a crash in the midst of it, the next one knows what to look for.
            note = Note(
                sandbox_id,
                config.made_digest(body),
                spec.thread,
                spec.image,
                spec.runtime,
                created_s=self._clock(),
                held=held,
                ended_processes=0 if dropped is None else dropped.ended_processes,
            )
            lock.write(note)
        except BaseException:
            lock.retire()
            raise
        self._told(owner, note, "creating", f"image {spec.image}, runtime {spec.runtime}")
        try:
            channel, posture = await self._started(
                spec, sandbox_id, body, ground, image, lock=lock, undo=partial(self._destroy, sandbox_id)
            )
        except BaseException as error:
            self._told(owner, note, "failed", reason_of(error))
            raise
        self._told(owner, note, "running", "it came up")
        return self._keep(self._lent(note, spec, channel, posture, lock), lock)

    def _keep(self, sandbox: ChannelSandbox, lock: ThreadLock) -> Sandbox:
        lock.hold()
        lock.leave()
        self._let_go(sandbox.id)  # what it was before it was stopped on demand
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _shared(
        self, spec: SandboxSpec, image: Image, ground: Ground, lock: ThreadLock, *, replace: bool = True
    ) -> Sandbox | None:
        """Return the sandbox that a lock notes, if it lives; the lock, behind its gate, goes with it or is closed.

        With `replace` one that was made otherwise is removed first, unless calls are under way in it.
        """
        note = lock.read()
        if note is not None and note.unchecked:
            await self._give_up_claim(owner_of(spec), note, lock)
            return None
        if note is None:
            lock.close()
            return None
        mine = self._sandboxes.get(note.sandbox)
        if mine is not None and mine.alive and not (replace and (mine.spec != spec or mine.outdated)):
            lock.close()
            return mine
        left = self._left.get(note.sandbox)
        channel = Channel(self._channel_root / note.sandbox) if left is None else left.channel
        made = config.made_digest(self._config(spec, note.sandbox, ground, image, held=note.held)) == note.made
        fits = made and not self._is_old(note)
        try:
            if not fits and replace and lock.unused():
                raise SandboxUnavailable(MADE_OTHERWISE)
            posture = await introduced(channel)
            if made:
                refuse_weak(note.sandbox, posture, spec, host=ground.host, volumes=image.volumes)
        except SandboxError as error:
            if _is_slow(error) and not lock.hold_alone():
                # Whoever keeps it finds out what is the matter with it; a host that is busy is no reason to remove it.
                if left is None:
                    channel.close()
                lock.close()
                raise
            log.info("sandbox %s is replaced: %s", note.sandbox, error)
            channel.close()
            self._let_go(note.sandbox)
            try:
                await self._destroy(note.sandbox)
            except BaseException:
                lock.close()
                raise
            lock.retire()
            self._told(owner_of(spec), note, "removed", reason_of(error))
            return None
        except BaseException:  # a caller that gives up here leaves it where it is
            if left is None:
                channel.close()
            lock.close()
            raise
        self._let_go(note.sandbox)
        log.info("sandbox %s, which lives already, is taken", note.sandbox)
        if not note.thread:
            lock.write(dataclasses.replace(note, thread=spec.thread, image=spec.image, runtime=spec.runtime))
        return self._keep(self._lent(note, spec, channel, posture, lock, outdated=not made), lock)

    def _let_go(self, sandbox_id: str) -> None:
        """Drop what is known of a sandbox, but for the channel of one that was left."""
        left = self._left.pop(sandbox_id, None)
        if left is not None:
            left.lock.close()
        mine = self._sandboxes.pop(sandbox_id, None)
        if mine is not None:
            mine.close()
            if mine.lock is not None:
                mine.lock.close()

    async def _remove_unheld(self, owner: Owner, lock: ThreadLock, sandbox_id: str, reason: str) -> None:
        """Remove a sandbox unless another process has it; its lock is behind the gate, or gone."""
        try:
            if not lock.gone and lock.hold_alone():
                await self._destroy(sandbox_id)
                note = lock.read()
                if note is None or note.sandbox == sandbox_id:
                    lock.retire()
                known = note if note is not None and note.sandbox == sandbox_id else Note(sandbox_id, "")
                self._told(owner, known, "removed", reason)
        finally:
            lock.close()


def _is_slow(error: SandboxError) -> bool:
    """Return whether a daemon is there and has only not answered in time."""
    lost = error.__cause__
    return lost is not None and isinstance(lost.__cause__, TimeoutError)
