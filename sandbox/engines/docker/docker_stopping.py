"""DockerStopping: containers that are stopped, for being idle or asked for, and started again for the next call.

A stopped container keeps its configuration, its channel directory and its workspace, and no memory. It has no lock file
of its thread, so nobody counts it as live and whoever has an old connection knows that it is gone; a file of
StoppedSandboxes tells of it. All that is done here to a thread's sandbox is done behind the gate of its lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from functools import partial

from sandbox.client.channel import SOCKET_NAME, Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_ground import Image
from sandbox.engines.docker.docker_listing import shown
from sandbox.engines.docker.docker_starting import DockerStarting, over
from sandbox.engines.docker.handshake import connected
from sandbox.engines.docker.runtime_volume import Ground
from sandbox.engines.docker.stopped_sandboxes import Stopped
from sandbox.errors import EngineUnavailable, SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.owner import Owner, owner_by_name, owner_of
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import ASKED, ASKED_AGAIN, MADE_OTHERWISE, TOO_LONG

log = logging.getLogger(__name__)

# How long a sandbox that is about to be stopped may take to say what runs in it.
_LAST_LOOK_S = 2.0


class DockerStopping(DockerStarting):
    """The ground with what is stopped on it."""

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox unless it is in use; what is dead, or cannot be stopped, is removed."""
        owner = owner_by_name(tenant, thread)
        lock = await self._enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is None or note is None:
            return self._resting(owner)
        if not await self._stop_unused(owner, lock, note, ASKED):
            raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
        return self._resting(owner) or shown(note, "removed")

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Remove a thread's sandbox, running, stopped or dead, unless it is in use."""
        owner = owner_by_name(tenant, thread)
        lock = await self._enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is None or note is None:
            was = self._resting(owner)
            return was if await self._remove_stopped(owner, ASKED) else None
        try:
            was = next((one for one in await self.listed(tenant) if one.id == note.sandbox), None)
        except BaseException:
            lock.close()
            raise
        if not await self._remove_unused(owner, lock, note, ASKED):
            raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
        return was

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        """Remove the sandboxes that are stopped for `timeout_s`, or past `limit` of all; return how many went."""
        removed = 0
        for owner in self._stopped.surplus(timeout_s=timeout_s, limit=limit):
            removed += await self._remove_stopped(owner, TOO_LONG)
        return removed

    async def _stop_unused(self, owner: Owner, lock: ThreadLock, note: Note, reason: str) -> bool:
        """Stop the sandbox of a lock behind its gate unless calls are under way in it; return whether it is at its end.

        One that cannot be stopped is removed.
        """
        try:
            if not lock.unused():
                return False
            await self._stop_or_remove(owner, note, Channel(self._channel_root / note.sandbox), reason)
            lock.retire()
            return True
        finally:
            lock.close()

    async def _remove_unused(self, owner: Owner, lock: ThreadLock, note: Note, reason: str) -> bool:
        """Remove the sandbox of a lock behind its gate unless calls are under way in it; return whether it is gone."""
        try:
            if not lock.unused():
                return False
            await self._destroy(note.sandbox)
            self._stopped.remove(owner)  # a crash in the midst of stopping may have left it
            lock.retire()
            self._told(owner, note, "removed", reason)
            return True
        finally:
            lock.close()

    async def _stop_or_remove(self, owner: Owner, note: Note, channel: Channel, reason: str) -> bool:
        """Stop a sandbox that nobody keeps, behind its gate, or remove it; return whether it is stopped."""
        if await self._stop_behind_gate(owner, note, channel, reason):
            return True
        await self._destroy(note.sandbox)
        self._stopped.remove(owner)  # a crash in the midst of stopping may have left it
        self._told(owner, note, "removed", f"{reason}, and it could not be stopped")
        return False

    async def _stop_behind_gate(self, owner: Owner, note: Note, channel: Channel, reason: str) -> bool:
        """Stop a sandbox that nobody keeps; False when it has to be removed. Its channel is closed."""
        try:
            processes = await _running(channel)
            if channel.lost is not None:
                return False
        finally:
            channel.close()
        try:
            # Noted first: after a crash in the midst of it, the next one knows that it is no orphan.
            self._stopped.write(owner, Stopped(note, note.ended_processes + processes))
        except OSError as error:
            log.warning("sandbox %s is removed, for that it is stopped cannot be noted: %s", note.sandbox, error)
            return False
        name = config.container_name(self._instance, note.sandbox)
        try:
            await self._requests.ask(docker_requests.stop_container, name)
        except SandboxUnavailable as error:
            log.info("sandbox %s is removed, for it was not stopped: %s", note.sandbox, error)
            self._stopped.remove(owner)
            return False
        log.info("sandbox %s is stopped: %s", note.sandbox, reason)
        ended = f"; its background processes ({processes}) ended" if processes else ""
        self._told(owner, note, "idle_stopped", f"{reason}{ended}")
        return True

    async def _resumed(
        self, spec: SandboxSpec, image: Image, ground: Ground, lock: ThreadLock
    ) -> ChannelSandbox | None:
        """Start what is stopped of a thread, behind its gate; None where there is nothing that is fit.

        What is not fit is removed, and the lock stays as it is. Whoever gives up, or does not get an answer of the
        engine, leaves it stopped, and the lock closed.
        """
        owner = owner_of(spec)
        stopped = self._stopped.read(owner)
        if stopped is None:
            self._stopped.remove(owner)
            return None
        note = dataclasses.replace(stopped.note, ended_processes=stopped.processes)
        # Before anything else: what ended with it is told, also where it is not started again.
        noted = dataclasses.replace(note, thread=spec.thread, image=spec.image, runtime=spec.runtime)
        lock.write(noted)
        made = config.made_digest(self._config(spec, note.sandbox, ground, image, held=note.held))
        if self._is_old(note) or made != note.made:
            log.info("stopped sandbox %s is replaced: %s", note.sandbox, MADE_OTHERWISE)
            await self._drop_stopped(owner, note, lock, MADE_OTHERWISE)
            return None
        channel = Channel(self._channel_root / note.sandbox)
        boot: asyncio.Future[None] | None = None
        try:
            # The socket of the daemon that was: a channel holds on to the first that it sees.
            (self._channel_root / note.sandbox / SOCKET_NAME).unlink(missing_ok=True)
            boot = asyncio.ensure_future(self._start_again(note.sandbox))
            await connected(channel, boot, partial(self._refuse_dead, note.sandbox))
            await asyncio.shield(boot)
            posture = await self._verify(channel, spec, note.sandbox, ground, image)
        except BaseException as error:
            channel.close()
            if isinstance(error, EngineUnavailable) or not isinstance(error, SandboxError | OSError):
                self._in_background(self._stop_again(boot, note.sandbox, lock))
                raise
            log.info("stopped sandbox %s is replaced: %s", note.sandbox, error)
            await self._drop_stopped(owner, note, lock, str(error), boot)
            return None
        self._stopped.remove(owner)
        log.info("sandbox %s is resumed", note.sandbox)
        self._told(owner, noted, "running", ASKED_AGAIN)
        return self._lent(note, spec, channel, posture, lock)

    async def _drop_stopped(
        self, owner: Owner, note: Note, lock: ThreadLock, reason: str, boot: asyncio.Future[None] | None = None
    ) -> None:
        """Remove what is not fit to be started; the lock is closed only when that fails."""
        try:
            await over(boot)
            await self._destroy(note.sandbox)
            self._stopped.remove(owner)
        except BaseException:
            lock.retire()
            raise
        self._told(owner, note, "removed", reason)

    async def _stop_again(self, boot: asyncio.Future[None] | None, sandbox_id: str, lock: ThreadLock) -> None:
        """Stop what somebody gave up to start, behind its gate still."""
        try:
            await over(boot)
            name = config.container_name(self._instance, sandbox_id)
            await self._requests.ask(docker_requests.stop_container, name)
        except SandboxError as error:
            log.warning("sandbox %s may run, a later look will find it: %s", sandbox_id, error)
        finally:
            lock.retire()

    async def _is_resting(self, owner: Owner, sandbox_id: str) -> bool:
        """Return whether a sandbox is stopped, by its file and its container; behind the gate of its owner."""
        stopped = self._stopped.read(owner)
        if stopped is None or stopped.note.sandbox != sandbox_id:
            return False
        name = config.container_name(self._instance, sandbox_id)
        try:
            state = await self._requests.ask(docker_requests.container_state, name)
        except SandboxUnavailable:
            return False
        return not state["Running"]

    async def _start_again(self, sandbox_id: str) -> None:
        name = config.container_name(self._instance, sandbox_id)
        await self._requests.ask(docker_requests.start_again, name)


async def _running(channel: Channel) -> int:
    """Return how many processes run in the background of a sandbox that no call is in; 0 where it does not say."""
    try:
        async with asyncio.timeout(_LAST_LOOK_S):
            found = await RemoteProcesses(channel).list()
    except (SandboxError, TimeoutError):
        return 0
    return sum(process.running for process in found.processes) + found.strays
