"""StoppedContainers: containers that are stopped, for being idle or on request, and started again by the next call.

A stopped container keeps its configuration, the directory of its channel and its workspace, and no memory. It has no
lock file of its thread, so no process counts it as live, and a process with an old connection knows that it is gone;
its file of StoppedSandboxes says that it exists. All that is done here to a thread's sandbox is done behind the gate of
its lock.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from sandbox.client.channel import Channel
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.background import over
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.boot import Blueprint, Boot
from sandbox.engines.docker.lock_directory import Stopped
from sandbox.engines.docker.parts import Container, Parts, id_of
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.sandbox import Owner, Sandbox
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import MADE_OTHERWISE, STARTED_AGAIN, STOPPED_LIMIT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoppedContainers:
    """Stops containers, and starts or removes the stopped ones."""

    parts: Parts
    boot: Boot

    async def stop_or_remove(self, owner: Owner, note: Note, channel: Channel, reason: str) -> bool:
        """Stop a sandbox that no process has, or else remove it; return whether it is stopped. Closes the channel."""
        if await self._stop(owner, note, channel, reason):
            return True
        await self.parts.containers.remove(note.sandbox)
        self.parts.stopped.remove(owner)  # a crash while it was being stopped may have left it
        self.parts.record(owner, note, "removed", f"{reason}; it could not be stopped")
        return False

    async def _stop(self, owner: Owner, note: Note, channel: Channel, reason: str) -> bool:
        try:
            processes = await _running(channel)
            if channel.lost is not None:
                return False
        finally:
            channel.close()
        try:
            # Noted first: after a crash meanwhile, the next process knows that it is no orphan.
            self.parts.stopped.write(owner, Stopped(note, note.ended_processes + processes))
        except OSError as error:
            log.warning("sandbox %s is removed, for that it is stopped cannot be noted: %s", note.sandbox, error)
            return False
        try:
            await self.parts.containers.stop(note.sandbox)
        except SandboxUnavailable as error:
            log.info("sandbox %s is removed, for it was not stopped: %s", note.sandbox, error)
            self.parts.stopped.remove(owner)
            return False
        log.info("sandbox %s is stopped: %s", note.sandbox, reason)
        ended = f"; its background processes ({processes}) ended" if processes else ""
        self.parts.record(owner, note, "idle_stopped", f"{reason}{ended}")
        return True

    async def resume(self, blueprint: Blueprint, lock: ThreadLock) -> Sandbox | None:
        """Start the stopped container of a thread, behind its gate, and return it attached; None where none fits.

        One that does not fit is removed, and the lock stays as it is. If the caller is cancelled, or the engine does
        not answer, it stays stopped, and the lock is closed.
        """
        spec, owner = blueprint.spec, blueprint.owner
        stopped = self.parts.stopped.read(owner)
        if stopped is None:
            self.parts.stopped.remove(owner)
            return None
        note = replace(stopped.note, ended_processes=stopped.processes)
        # Before anything else: what ended with it is reported even if it is not started again.
        noted = replace(note, thread=spec.thread, image=spec.image, runtime=spec.runtime)
        try:
            lock.write(noted)
        except OSError:
            lock.retire()
            raise
        if self.parts.lifetime.is_over(note) or blueprint.made(note.sandbox, pooled=note.held) != note.made:
            log.info("stopped sandbox %s is replaced: %s", note.sandbox, MADE_OTHERWISE)
            await self._drop(owner, note, lock, MADE_OTHERWISE)
            return None
        channel: Channel | None = None
        boot: asyncio.Future[None] | None = None
        try:
            opening = self.parts.channels.begin(owner, note.sandbox, again=True)
            channel = opening.channel
            starting = asyncio.ensure_future(self.parts.containers.ask(docker_requests.start_again, note.sandbox))
            boot = asyncio.ensure_future(opening.beside(starting))
            await self.boot.connected(channel, boot, note.sandbox)
            posture = await blueprint.verified(channel, note.sandbox)
        except BaseException as error:
            if channel is not None:
                channel.close()
            if isinstance(error, EngineUnavailable) or not isinstance(error, SandboxError | OSError):
                self.parts.background.begin(self._stop_again(boot, note.sandbox, lock))
                raise
            log.info("stopped sandbox %s is replaced: %s", note.sandbox, error)
            await self._drop(owner, note, lock, str(error), boot)
            return None
        self.parts.stopped.remove(owner)
        log.info("sandbox %s is resumed", note.sandbox)
        self.parts.record(owner, noted, "running", STARTED_AGAIN)
        return self.parts.attached.use(note, spec, channel, posture, lock)

    async def _drop(
        self, owner: Owner, note: Note, lock: ThreadLock, reason: str, boot: asyncio.Future[None] | None = None
    ) -> None:
        """Remove a container that does not fit; the lock is closed only when that fails."""
        try:
            await over(boot)
            await self.parts.containers.remove(note.sandbox)
            self.parts.stopped.remove(owner)
        except BaseException:
            lock.retire()
            raise
        self.parts.record(owner, note, "removed", reason)

    async def _stop_again(self, boot: asyncio.Future[None] | None, sandbox_id: str, lock: ThreadLock) -> None:
        """Stop a container whose start was given up, still behind its gate."""
        try:
            await over(boot)
            await self.parts.containers.stop(sandbox_id)
        except SandboxError as error:
            log.warning("sandbox %s may run, a later look will find it: %s", sandbox_id, error)
        finally:
            lock.retire()

    async def remove(self, owner: Owner, reason: str) -> bool:
        """Remove the stopped sandbox of a thread; return whether there was one that was not started meanwhile."""
        if not self.parts.stopped.has(owner):
            return False
        async with self.parts.locks.entered(owner) as lock:
            stopped, note = self.parts.stopped.read(owner), lock.read()
            # It may run again, and a crash have left the file.
            gone = stopped is not None and (note is None or note.sandbox != stopped.note.sandbox)
            if stopped is not None and gone:
                await self.parts.containers.remove(stopped.note.sandbox)
                self.parts.record(owner, stopped.note, "removed", reason)
            self.parts.stopped.remove(owner)
            return gone

    async def remove_all(self) -> None:
        for owner in self.parts.stopped.owners():
            await self.remove(owner, "the last gateway of the engine stops")

    async def trim(self, *, timeout_s: float, limit: int) -> int:
        """Remove the sandboxes that are stopped for `timeout_s`, or past `limit` of all; return how many."""
        surplus = self.parts.stopped.surplus(timeout_s=timeout_s, limit=limit)
        return sum([await self.remove(owner, STOPPED_LIMIT) for owner in surplus])

    async def is_stopped(self, owner: Owner, sandbox_id: str) -> bool:
        """Return whether a sandbox is stopped, by its file and its container; behind the gate of its owner."""
        if self._noted(owner) != sandbox_id:
            return False
        try:
            return not (await self.parts.containers.ask(docker_requests.container_state, sandbox_id))["Running"]
        except SandboxUnavailable:
            return False

    def is_at_rest(self, container: Container, owner: Owner) -> bool:
        """Return whether a container is stopped and no process is at work on it."""
        at_work = container["State"] != "exited" or self.parts.locks.has(owner)
        return not at_work and self._noted(owner) == id_of(container)

    def _noted(self, owner: Owner) -> str | None:
        stopped = self.parts.stopped.read(owner)
        return None if stopped is None else stopped.note.sandbox


async def _running(channel: Channel) -> int:
    """Return how many background processes run in a sandbox without calls; 0 where it does not say."""
    try:
        # How long a sandbox that is about to be stopped may take to say what runs in it.
        async with asyncio.timeout(2.0):
            found = await RemoteProcesses(channel).list()
    except (SandboxError, TimeoutError):
        return 0
    return sum(process.running for process in found.processes) + found.strays
