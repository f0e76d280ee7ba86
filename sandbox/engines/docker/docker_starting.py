"""DockerStarting: how a container comes up, whoever it is for; and what of it stays when it does not: nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_ground import Image
from sandbox.engines.docker.docker_listing import DockerListing
from sandbox.engines.docker.handshake import connected, introduced, refuse_weak
from sandbox.engines.docker.runtime_volume import BundleBroken, Ground
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)


class DockerStarting(DockerListing):
    """The ground with what comes up on it."""

    def _lent(
        self,
        note: Note,
        spec: SandboxSpec,
        channel: Channel,
        posture: pb.Posture,
        lock: ThreadLock,
        *,
        outdated: bool = False,
    ) -> ChannelSandbox:
        """Return a sandbox that came up or was found, as its note has it."""
        overdue_s = partial(self._overdue_s, note)
        record = EngineRecord(lock, outdated, note.ended_processes, overdue_s)
        return ChannelSandbox(note.sandbox, spec, channel, posture, record)

    async def _started(
        self,
        spec: SandboxSpec,
        sandbox_id: str,
        body: dict[str, Any],
        ground: Ground,
        image: Image,
        *,
        lock: ThreadLock,
        undo: Callable[[], Awaitable[None]],
    ) -> tuple[Channel, pb.Posture]:
        """Make a container of `body` and return the way to its daemon, and what holds it, which is enough.

        When it does not come up, or nobody waits for it any more, `undo` is done and `lock`, behind its gate, retired.
        """
        channel: Channel | None = None
        boot: asyncio.Future[None] | None = None
        try:
            channel = Channel(self._make_channel_directory(sandbox_id))
            boot = asyncio.ensure_future(self._boot(spec, sandbox_id, body))
            # Both at once: the daemon listens before the engine has finished saying that it started the container.
            await connected(channel, boot, partial(self._refuse_dead, sandbox_id))
            await asyncio.shield(boot)
            return channel, await self._verify(channel, spec, sandbox_id, ground, image)
        except BaseException as error:
            if channel is not None:
                channel.close()
            undoing = self._in_background(_undone(boot, undo, lock, sandbox_id))
            if isinstance(error, Exception):
                await asyncio.shield(undoing)
            raise

    async def _boot(self, spec: SandboxSpec, sandbox_id: str, body: dict[str, Any]) -> None:
        """Create and start the container."""
        name = config.container_name(self._instance, sandbox_id)
        body["Labels"][config.MADE_LABEL] = config.made_digest(body)
        try:
            await self._requests.ask(docker_requests.start_container, body, name, image=spec.image)
        except docker_requests.StartRefused as error:
            if config.RUNTIME_DIRECTORY in str(error):
                raise BundleBroken(f"the sandbox daemon could not be started: {error}") from error
            raise SandboxUnavailable(
                f"the engine failed to start a sandbox from image {spec.image!r}: {error}"
            ) from error

    async def _refuse_dead(self, sandbox_id: str) -> None:
        name = config.container_name(self._instance, sandbox_id)
        state = await self._requests.ask(docker_requests.container_state, name)
        if not state["Running"]:
            raise BundleBroken(
                f"the sandbox daemon exited immediately with code {state['ExitCode']}: image "
                f"{self._runtime_image!r} may not fit this machine; run `make setup` to rebuild it"
            )

    async def _verify(
        self, channel: Channel, spec: SandboxSpec, sandbox_id: str, ground: Ground, image: Image
    ) -> pb.Posture:
        posture = await introduced(channel)
        refuse_weak(sandbox_id, posture, spec, host=ground.host, volumes=image.volumes)
        return posture


async def over(work: asyncio.Future[Any] | None) -> None:
    """Wait for the end of what was begun, however it ends; None is over."""
    if work is not None:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()


async def _undone(
    boot: asyncio.Future[None] | None, undo: Callable[[], Awaitable[None]], lock: ThreadLock, sandbox_id: str
) -> None:
    """Remove a sandbox that did not come up, whether or not its creator waits for that."""
    try:
        await over(boot)
        await undo()
        lock.retire()
    except SandboxError as error:
        log.warning("sandbox %s could not be removed, the next start will: %s", sandbox_id, error)
    finally:
        lock.close()
