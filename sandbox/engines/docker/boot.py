"""Boot: what a sandbox of a spec is made of, and the start of its container. Nothing stays of one that fails."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf import text_format

from sandbox.client.channel import Channel
from sandbox.engines.background import over
from sandbox.engines.containment import RUNTIME_DIRECTORY
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import FoundImage
from sandbox.engines.docker.engine_setup import BundleBroken
from sandbox.engines.docker.lock_directory import retired
from sandbox.engines.docker.parts import Parts
from sandbox.engines.handshake import connected, introduced
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.engines.posture import HostKernel, weaknesses
from sandbox.errors import PostureTooWeak, SandboxUnavailable
from sandbox.sandbox import Owner, SandboxSpec, made_digest, owner_of
from sandbox.thread_lock import ThreadLock
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A spec with the id of its image, for a tag may move, and with what the engine's host can do.

    `volumes` are the paths of the image's volumes, each of which an empty mount covers.
    """

    spec: SandboxSpec
    image_id: str
    volumes: tuple[str, ...]
    site: config.Site
    host: HostKernel

    @property
    def owner(self) -> Owner:
        return owner_of(self.spec)

    def body(self, sandbox_id: str, *, pooled: str = "") -> dict[str, Any]:
        """Return the configuration of a container; `pooled` as for container_config()."""
        spec = dataclasses.replace(self.spec, image=self.image_id)
        return config.container_config(spec, self.site, sandbox_id, volumes=self.volumes, pooled=pooled)

    def made(self, sandbox_id: str, *, pooled: str = "") -> str:
        return made_digest(self.body(sandbox_id, pooled=pooled))

    async def verified(self, channel: Channel, sandbox_id: str) -> pb.Posture:
        """Return the posture of a sandbox, by its daemon; raises SandboxError where it is weaker than the spec."""
        posture = await introduced(channel)
        self.refuse_weak(sandbox_id, posture)
        return posture

    def refuse_weak(self, sandbox_id: str, posture: pb.Posture) -> None:
        """Raise PostureTooWeak, with every weakness, for a sandbox that is weaker than the spec asks."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("posture of sandbox %s: %s", sandbox_id, text_format.MessageToString(posture, as_one_line=True))
        found = weaknesses(posture, self.spec, host=self.host, volumes=self.volumes)
        if found:
            log.warning("sandbox %s is refused: %s", sandbox_id, " ".join(found))
            raise PostureTooWeak("the sandbox is weaker than its spec and was removed: " + " ".join(found))


class Boot:
    """Makes blueprints and starts containers; what does not come up is removed in the background.

    `channels_identity` labels the containers that are made from now on; see channel_directory.py.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inspections: dict[str, asyncio.Future[FoundImage]] = {}
        self.channels_identity = ""

    async def blueprint(self, spec: SandboxSpec) -> Blueprint:
        """Return the blueprint of a spec; SandboxUnavailable for an image that cannot be used."""
        parts, context = self._parts, await self._parts.setup.prepared()
        found = await self._inspected(spec.image)
        try:
            volumes = config.image_volumes(found.volumes)
        except ValueError as error:
            raise SandboxUnavailable(
                f"image {spec.image!r} cannot be used: {error}; rebuild it without that VOLUME"
            ) from error
        where = (parts.instance, parts.channels.mount, parts.channels.group)
        site = config.Site(*where, context.runtime, context.workspace_quota, self.channels_identity)
        return Blueprint(spec, found.id, volumes, site, context.host)

    async def _inspected(self, name: str) -> FoundImage:
        """Inspect an image, once for all callers of the same moment."""
        inspection = self._inspections.get(name)
        if inspection is None:
            inspection = asyncio.ensure_future(self._parts.requests.ask(docker_requests.inspect_image, name))
            self._inspections[name] = inspection
            inspection.add_done_callback(lambda _: self._inspections.pop(name))
        return await asyncio.shield(inspection)

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
            opening = self._parts.channels.begin(None if is_pooled(sandbox_id) else blueprint.owner, sandbox_id)
            channel = opening.channel
            starting = asyncio.ensure_future(self._start(blueprint.spec.image, sandbox_id, body))
            boot = asyncio.ensure_future(opening.beside(starting))
            await self.connected(channel, boot, sandbox_id)
            return channel, await blueprint.verified(channel, sandbox_id)
        except BaseException as error:
            if channel is not None:
                channel.close()
            undoing = self._parts.background.begin(_undone(boot, undo, lock, sandbox_id))
            if isinstance(error, Exception):
                await asyncio.shield(undoing)
            raise

    async def connected(self, channel: Channel, boot: asyncio.Future[None], sandbox_id: str) -> None:
        """Return when the daemon listens and `boot`, the start of its container, is done."""
        # Both at once: the daemon listens before the engine has finished saying that it started the container.
        await connected(channel, boot, partial(self._refuse_dead, sandbox_id))
        await asyncio.shield(boot)

    async def _start(self, image: str, sandbox_id: str, body: dict[str, Any]) -> None:
        body["Labels"][config.MADE_LABEL] = made_digest(body)
        name = self._parts.containers.name(sandbox_id)
        try:
            await self._parts.requests.ask(docker_requests.start_container, body, name, image=image)
        except docker_requests.StartRefused as error:
            if RUNTIME_DIRECTORY in str(error):
                raise BundleBroken(f"the sandbox daemon could not be started: {error}") from error
            raise SandboxUnavailable(f"the engine failed to start a sandbox from image {image!r}: {error}") from error

    async def _refuse_dead(self, sandbox_id: str) -> None:
        state = await self._parts.containers.ask(docker_requests.container_state, sandbox_id)
        if not state["Running"]:
            raise BundleBroken(
                f"the sandbox daemon exited immediately with code {state['ExitCode']}: image "
                f"{self._parts.runtime_image!r} may not fit this machine; run `airlock images build` to rebuild it"
            )


async def _undone(
    boot: asyncio.Future[None] | None, undo: Callable[[], Awaitable[None]], lock: ThreadLock, sandbox_id: str
) -> None:
    """Remove a sandbox that did not come up, whether or not its creator waits for that."""
    with retired(sandbox_id, lock):
        await over(boot)
        await undo()
