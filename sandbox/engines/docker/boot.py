"""Boot: starts the container of a new sandbox, and leaves nothing of one that does not come up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.blueprint import Blueprint
from sandbox.engines.docker.handshake import connected
from sandbox.engines.docker.parts import Parts
from sandbox.engines.docker.request_threads import over
from sandbox.engines.docker.runtime_volume import BundleBroken
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.thread_lock import ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Boot:
    """Starts containers; what does not come up is removed in the background."""

    parts: Parts
    runtime_image: str

    async def started(
        self,
        blueprint: Blueprint,
        sandbox_id: str,
        body: dict[str, Any],
        lock: ThreadLock,
        undo: Callable[[], Awaitable[None]],
    ) -> tuple[Channel, pb.Posture]:
        """Start a container of `body`; return the channel to its daemon and its verified posture.

        When it does not come up, or the caller is cancelled, `undo` runs and `lock`, behind its gate, is retired.
        """
        channel: Channel | None = None
        boot: asyncio.Future[None] | None = None
        try:
            channel = self.parts.containers.make_channel(sandbox_id)
            boot = asyncio.ensure_future(self._boot(blueprint.spec.image, sandbox_id, body))
            await self.connected(channel, boot, sandbox_id)
            return channel, await blueprint.verified(channel, sandbox_id)
        except BaseException as error:
            if channel is not None:
                channel.close()
            undoing = self.parts.background.begin(_undone(boot, undo, lock, sandbox_id))
            if isinstance(error, Exception):
                await asyncio.shield(undoing)
            raise

    async def connected(self, channel: Channel, boot: asyncio.Future[None], sandbox_id: str) -> None:
        """Return when the daemon listens and `boot`, the start of its container, is done."""
        # Both at once: the daemon listens before the engine has finished saying that it started the container.
        await connected(channel, boot, partial(self._refuse_dead, sandbox_id))
        await asyncio.shield(boot)

    async def _boot(self, image: str, sandbox_id: str, body: dict[str, Any]) -> None:
        body["Labels"][config.MADE_LABEL] = config.made_digest(body)
        try:
            await self.parts.containers.start(sandbox_id, body, image=image)
        except docker_requests.StartRefused as error:
            if config.RUNTIME_DIRECTORY in str(error):
                raise BundleBroken(f"the sandbox daemon could not be started: {error}") from error
            raise SandboxUnavailable(f"the engine failed to start a sandbox from image {image!r}: {error}") from error

    async def _refuse_dead(self, sandbox_id: str) -> None:
        state = await self.parts.containers.state(sandbox_id)
        if not state["Running"]:
            raise BundleBroken(
                f"the sandbox daemon exited immediately with code {state['ExitCode']}: image "
                f"{self.runtime_image!r} may not fit this machine; run `make setup` to rebuild it"
            )


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
