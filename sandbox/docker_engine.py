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
from typing import Any

from sandbox import container_config as config
from sandbox import docker_requests
from sandbox.channel import Channel
from sandbox.channel_sandbox import ChannelSandbox
from sandbox.docker_ground import Image
from sandbox.docker_requests import EngineFacts
from sandbox.docker_stopping import MADE_OTHERWISE, DockerStopping
from sandbox.docker_workspaces import DockerWorkspaces
from sandbox.engine import LeftSandbox, LiveSandbox, Sandbox, SandboxSpec
from sandbox.errors import EngineUnavailable, SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.greeting import connected, introduced, refuse_weak
from sandbox.runtime_volume import BundleBroken, Ground, release_runtime
from sandbox.stopped_sandboxes import Owner
from sandbox.survivor import Survivor, reach
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import Tell, nobody

__all__ = ["DockerEngine", "EngineFacts"]

log = logging.getLogger(__name__)

_ASKED = "somebody asked for it"
_ROOM = "it made room for another"


class DockerEngine(DockerStopping, DockerWorkspaces):
    """Satisfies sandbox.engine.Engine. `channel_root` must be the same path for this process and for the engine.

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
        self._left: dict[str, Survivor] = {}

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
        lock = await self._locks.enter_existing(config.owner(spec))
        return None if lock is None else await self._shared(spec, image, ground, lock, replace=False)

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether a tenant and thread have a lock file."""
        return self._locks.has(config.owner(spec))

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of what is stopped of a tenant and thread, by its file."""
        found = self._stopped.read(config.owner(spec))
        return None if found is None else found.note.sandbox

    def owners(self) -> Sequence[tuple[str, str]]:
        """Return whose lock files there are, the longest unused first."""
        return self._locks.owners()

    async def live(self, tenant: str) -> Sequence[LiveSandbox]:
        """Return the running sandboxes of a tenant, by id."""
        notes = {note.sandbox: note for note in self._locks.notes(config.digest(tenant))}
        if not notes:
            return []
        labels = {**self._labels("sandbox"), config.TENANT_LABEL: config.digest(tenant)}
        found = []
        for container in await self._requests.ask(docker_requests.list_containers, labels):
            note = notes.get(container["Labels"][config.SANDBOX_LABEL])
            if note is not None and container["State"] == "running":
                made_s = float(container["Created"])
                found.append(LiveSandbox(note.sandbox, note.thread, note.image, note.runtime, made_s))
        return sorted(found, key=lambda sandbox: sandbox.id)

    async def stop(self, tenant: str, thread: str) -> LiveSandbox | None:
        """Remove a thread's sandbox unless it is in use; one that is dead or stopped goes too, and counts as none."""
        owner = (config.digest(tenant), config.digest(tenant, thread))
        lock = await self._locks.enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is None or note is None:
            await self._remove_stopped(owner, _ASKED)
            return None
        try:
            was = next((one for one in await self.live(tenant) if one.id == note.sandbox), None)
        except BaseException:
            lock.close()
            raise
        if not await self._remove_unused(owner, lock, note, _ASKED):
            raise SandboxBusy("calls are under way in this sandbox; stop it when they are over, or cancel them")
        return was

    async def end_calls(self, tenant: str, thread: str) -> bool:
        """Remove a thread's sandbox if calls are under way in it; return whether there were any."""
        owner = (config.digest(tenant), config.digest(tenant, thread))
        lock = await self._locks.enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is None or note is None:
            return False
        try:
            if lock.unused():
                return False
            log.warning("sandbox %s is removed with the calls that are under way in it", note.sandbox)
            await self._destroy(note.sandbox)
            lock.retire()
            self._told(owner, note, "removed", "a gateway that had calls in it is lost")
            return True
        finally:
            lock.close()

    async def remove_idle(self, tenant: str | None) -> bool:
        """Remove the sandbox that was used longest ago and is not in use."""
        for owner in self._locks.owners():
            lock = self._locks.try_enter(owner) if tenant in (None, owner[0]) else None
            note = lock.read() if lock is not None else None
            if lock is not None and note is None:
                lock.close()
            elif lock is not None and note is not None and await self._remove_unused(owner, lock, note, _ROOM):
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        """Stop a sandbox that nobody uses; one that another process has is only let go of. None is no error."""
        held = self._sandboxes.get(sandbox_id) or self._left.get(sandbox_id)
        if held is None or held.lock is None:
            await self.remove(sandbox_id)
            return False
        owner = config.owner(held.spec) if isinstance(held, ChannelSandbox) else held.owner
        self._sandboxes.pop(sandbox_id, None)
        self._left.pop(sandbox_id, None)
        lock = held.lock
        try:
            await self._locks.shut(lock)
            note = lock.read()
            if note is None or note.sandbox != sandbox_id or lock.gone or not lock.hold_alone():
                return False
            stopped = await self._stop_behind_gate(owner, note, held.channel)
            if not stopped:
                await self._destroy(sandbox_id)
                self._told(owner, note, "removed", "nobody used it, and it could not be stopped")
            lock.retire()
            return stopped
        finally:
            held.channel.close()
            lock.close()

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox, not its workspace; one that another process has is only let go of. None is no error."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        left = self._left.pop(sandbox_id, None)
        lock, owner, reason = (
            None,
            None,
            "its gateway stops" if self._closed else "nobody used it, or its gateway stops",
        )
        if sandbox is not None:
            if not self._closed and not sandbox.alive:
                reason = f"it was lost: {sandbox.channel.lost}"
            elif not self._closed and sandbox.outdated:
                reason = MADE_OTHERWISE
            sandbox.close()
            lock, owner = sandbox.lock, config.owner(sandbox.spec)
        if left is not None:
            left.channel.close()
            lock, owner = left.lock, left.owner
        if lock is not None and owner is not None:
            await self._locks.shut(lock)
        else:
            labels = {**self._labels("sandbox"), config.SANDBOX_LABEL: sandbox_id}
            found = await self._requests.ask(docker_requests.list_containers, labels)
            if not found:
                return
            owner = _owner_of(found[0])
            stopped = self._stopped.read(owner)
            if stopped is not None and stopped.note.sandbox == sandbox_id:
                await self._remove_stopped(owner, reason)
                return
            lock = await self._locks.enter(owner)
        await self._remove_unheld(owner, lock, sandbox_id, reason)

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Look at what an earlier process of this instance left; workspaces always stay.

        Return the sandboxes that are alive and of this release, the newest first: create() takes one over when it is
        asked for the same, remove() removes it. The others are removed.
        """
        standing = self._locks.ground()
        try:
            if standing.try_gate():  # else another process is filling the runtime volume, and these are in use
                for container in await self._own_containers("runtime"):
                    await self._requests.ask(docker_requests.remove_container, container["Id"])
        finally:
            standing.close()
        await self.remove_carriers()
        containers = [
            container
            for container in await self._own_containers("sandbox")
            if container["Labels"][config.SANDBOX_LABEL] not in {*self._sandboxes, *self._left}
        ]
        containers.sort(key=lambda container: int(container["Created"]), reverse=True)
        # What is stopped and as it was left is not to be looked at each time.
        containers = [container for container in containers if not self._rests(container)]
        for owner in {_owner_of(container): None for container in containers}:
            await self._reconcile_thread(owner, [one for one in containers if _owner_of(one) == owner])
        for owner in {*self._locks.owners()} - {*map(_owner_of, containers)}:
            await self._reconcile_thread(owner, [])
        return [left.sandbox for left in self._left.values()]

    async def _reconcile_thread(self, owner: tuple[str, str], containers: Sequence[dict[str, Any]]) -> None:
        """Keep the newest one of a thread's sandboxes that is of use; leave alone what another process has."""
        lock = self._locks.try_enter(owner)
        if lock is None:
            return  # another process is at work there
        try:
            if not lock.hold_alone():
                lock.close()
                return
            kept, resting = None, ""
            for container in containers:
                sandbox_id = container["Labels"][config.SANDBOX_LABEL]
                if await self._is_resting(owner, sandbox_id):
                    resting = sandbox_id
                    continue
                if kept is None:
                    kept = await reach(container, self._channel_root, lock)
                    if kept is not None:
                        continue
                log.info("removing the orphaned sandbox %s", sandbox_id)
                await self._destroy(sandbox_id)
                note = lock.read()
                known = note if note is not None and note.sandbox == sandbox_id else Note(sandbox_id, "")
                self._told(owner, known, "removed", "nobody has it, and it is of no use any more")
            if kept is not None and resting:
                await self._destroy(resting)
            if kept is not None or (containers and not resting):
                self._stopped.remove(owner)
        except BaseException:
            lock.close()
            raise
        if kept is None:
            lock.retire()
            return
        self._left[kept.sandbox.id] = kept
        note = lock.read()
        if note is None or note.sandbox != kept.sandbox.id:
            lock.write(Note(kept.sandbox.id, kept.made))
        lock.hold()
        lock.leave()
        self._told(owner, lock.read() or Note(kept.sandbox.id, ""), "running", "found, for its gateway is gone")

    def _rests(self, container: dict[str, Any]) -> bool:
        """Return whether a container is stopped for being idle and nobody is at work on it."""
        owner = _owner_of(container)
        if container["State"] != "exited" or self._locks.has(owner):
            return False
        stopped = self._stopped.read(owner)
        return stopped is not None and stopped.note.sandbox == container["Labels"][config.SANDBOX_LABEL]

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
                if not keep_sandboxes:
                    running = [one for one in await self._own_containers("sandbox") if not self._rests(one)]
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
            if self._standing is not None:
                self._standing.close()
            self._locks.close()
            self._stopped.close()
            self._requests.close()

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        ground = await self._prepared()
        image = await self._image(spec.image)
        shared = await self._shared(spec, image, ground, await self._locks.enter(config.owner(spec)))
        if shared is not None:
            return shared
        lock = await self._locks.enter(config.owner(spec))
        if lock.read() is not None:  # another process was faster
            lock.close()
            return await self._create(spec)
        resumed = await self._resumed(spec, image, ground, lock)
        return await self._make(spec, image, ground, lock) if resumed is None else self._keep(resumed, lock)

    async def _make(self, spec: SandboxSpec, image: Image, ground: Ground, lock: ThreadLock) -> Sandbox:
        """Make a sandbox behind its thread's gate."""
        sandbox_id = f"{config.digest(spec.tenant, spec.thread)[:12]}-{self._new_suffix()}"
        body = self._config(spec, sandbox_id, ground, image)
        try:
            # Noted first: after a crash in the midst of it, the next one knows what to look for.
            note = Note(
                sandbox_id, config.made_digest(body), spec.thread, spec.image, spec.runtime, created_s=self._clock()
            )
            lock.write(note)
            directory = self._make_channel_directory(sandbox_id)
        except OSError:
            lock.retire()
            raise
        owner = config.owner(spec)
        self._told(owner, note, "creating", f"image {spec.image}, runtime {spec.runtime}")
        channel = Channel(directory)
        boot = asyncio.ensure_future(self._boot(spec, sandbox_id, body))
        try:
            # Both at once: the daemon listens before the engine has finished saying that it started the container.
            await connected(channel, boot, partial(self._refuse_dead, sandbox_id))
            await asyncio.shield(boot)
            posture = await self._verify(channel, spec, sandbox_id, ground, image)
        except BaseException as error:
            channel.close()
            self._told(owner, note, "failed", str(error) or "nobody waited for it any more")
            discarding = self._discard(boot, sandbox_id, lock)
            if isinstance(error, Exception):
                await asyncio.shield(discarding)
            raise
        self._told(owner, note, "running", "it came up")
        is_old = partial(self._is_old, note)
        return self._keep(ChannelSandbox(sandbox_id, spec, channel, posture, lock=lock, is_old=is_old), lock)

    def _keep(self, sandbox: ChannelSandbox, lock: ThreadLock) -> Sandbox:
        lock.hold()
        lock.leave()
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _shared(
        self, spec: SandboxSpec, image: Image, ground: Ground, lock: ThreadLock, *, replace: bool = True
    ) -> Sandbox | None:
        """Return the sandbox that a lock notes, if it lives; the lock, behind its gate, goes with it or is closed.

        With `replace` one that was made otherwise is removed first, unless calls are under way in it.
        """
        note = lock.read()
        if note is None:
            lock.close()
            return None
        mine = self._sandboxes.get(note.sandbox)
        if mine is not None and mine.alive and not (replace and (mine.spec != spec or mine.outdated)):
            lock.close()
            return mine
        left = self._left.get(note.sandbox)
        channel = Channel(self._channel_root / note.sandbox) if left is None else left.channel
        made = config.made_digest(self._config(spec, note.sandbox, ground, image)) == note.made
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
            self._told(config.owner(spec), note, "removed", str(error))
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
        is_old = partial(self._is_old, note)
        taken = ChannelSandbox(note.sandbox, spec, channel, posture, lock=lock, outdated=not made, is_old=is_old)
        return self._keep(taken, lock)

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

    async def _remove_unused(self, owner: Owner, lock: ThreadLock, note: Note, reason: str) -> bool:
        """Remove the sandbox of a lock behind its gate unless calls are under way in it; return whether it is gone."""
        try:
            if not lock.unused():
                return False
            await self._destroy(note.sandbox)
            lock.retire()
            self._told(owner, note, "removed", reason)
            return True
        finally:
            lock.close()

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

    async def _boot(self, spec: SandboxSpec, sandbox_id: str, body: dict[str, Any]) -> None:
        """Create and start the container."""
        name = config.container_name(self._instance, sandbox_id)
        body["Labels"][config.MADE_LABEL] = config.made_digest(body)
        try:
            await self._requests.ask(docker_requests.start_container, body, name, image=spec.image)
        except docker_requests.StartRefused as error:
            if config.RUNTIME_DIRECTORY in str(error):
                raise BundleBroken(f"the daemon could not be started: {error}") from error
            raise SandboxUnavailable(f"the engine did not start a sandbox of image {spec.image!r}: {error}") from error

    def _discard(self, boot: asyncio.Future[None], sandbox_id: str, lock: ThreadLock) -> asyncio.Task[None]:
        """Remove a sandbox that did not come up, whether or not its creator waits for that."""

        async def discard() -> None:
            await asyncio.wait({boot})
            if not boot.cancelled():
                boot.exception()
            try:
                await self._destroy(sandbox_id)
                lock.retire()
            except SandboxError as error:
                log.warning("sandbox %s could not be removed, the next start will: %s", sandbox_id, error)
            finally:
                lock.close()

        return self._in_background(discard())


def _owner_of(container: dict[str, Any]) -> tuple[str, str]:
    labels = container["Labels"]
    return labels[config.TENANT_LABEL], labels[config.THREAD_LABEL]


def _is_slow(error: SandboxError) -> bool:
    """Return whether a daemon is there and has only not answered in time."""
    lost = error.__cause__
    return lost is not None and isinstance(lost.__cause__, TimeoutError)
