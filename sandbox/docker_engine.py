"""DockerEngine: sandboxes as containers of a Docker engine.

What is inside a container is decided in container_config.py, what is said to Docker in docker_requests.py; here is how
a sandbox comes up, is verified, outlives a gateway's process and goes away.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sandbox import container_config as config
from sandbox import docker_requests
from sandbox.channel import Channel
from sandbox.channel_sandbox import ChannelSandbox
from sandbox.docker_requests import DockerRequests, EngineFacts
from sandbox.engine import LeftSandbox, Sandbox, SandboxSpec
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.greeting import connected, introduced, refuse_weak
from sandbox.runtime_volume import BundleBroken, Ground, prepare, release_runtime
from sandbox.survivor import Survivor, reach
from sandbox.v1 import channel_pb2 as pb

__all__ = ["DockerEngine", "EngineFacts"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Image:
    """A tenant's image, by its id, and where nothing but something empty is to be."""

    id: str
    volumes: tuple[str, ...]


class DockerEngine:
    """Satisfies sandbox.engine.Engine. `channel_root` must be the same path for this process and for the engine.

    `instance` labels what belongs to this gateway and survives its restarts; `base_url` is the engine's address, None
    means DOCKER_HOST or the default socket.
    """

    def __init__(
        self,
        *,
        instance: str,
        channel_root: Path,
        runtime_image: str = "airlock-runtime",
        base_url: str | None = None,
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._instance = instance
        self._channel_root = channel_root.absolute()
        self._runtime_image = runtime_image
        self._requests = DockerRequests(base_url)
        self._new_suffix = new_suffix
        self._preparing = asyncio.Lock()
        self._ground: Ground | None = None
        self._sandboxes: dict[str, ChannelSandbox] = {}
        self._left: dict[str, Survivor] = {}
        self._closed = False
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else it holds for each file only."""
        return self._ground is not None and self._ground.workspace_quota

    async def describe(self) -> EngineFacts:
        """Return what the engine says of itself; EngineUnavailable when it does not answer."""
        return await self._requests.ask(docker_requests.describe)

    async def prepare(self) -> None:
        """Make ready what every sandbox needs; raises SandboxError when none could be made."""
        await self._prepared()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox: started, greeted, its posture verified.

        One that an earlier process left for the same tenant and thread, made in the very same way, is taken over.
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

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox, not its workspace. One that is gone is no error."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.close()
        left = self._left.pop(sandbox_id, None)
        if left is not None:
            left.channel.close()
        name = config.container_name(self._instance, sandbox_id)
        await self._requests.ask(docker_requests.remove_container, name)
        await self._requests.run(lambda: shutil.rmtree(self._channel_root / sandbox_id, ignore_errors=True))

    async def remove_workspace(self, tenant: str, thread: str) -> None:
        """Remove a thread's files for good; its sandbox must be gone. Files that are gone are no error."""
        name = config.workspace_volume(self._instance, tenant, thread)
        await self._requests.ask(docker_requests.remove_volume, name)

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this instance for good."""
        if self._removals:  # a sandbox that never came up may still hold its workspace
            await asyncio.wait(self._removals)
        left = []
        for name in await self._requests.ask(docker_requests.list_volumes, self._labels("workspace")):
            try:
                await self._requests.ask(docker_requests.remove_volume, name)
            except SandboxUnavailable as error:
                left.append(str(error))
        if left:
            raise SandboxUnavailable("; ".join(left))

    async def owned(self) -> Sequence[str]:
        """Return the ids of the sandboxes that this instance owns, alive or not."""
        containers = await self._own_containers("sandbox")
        return [container["Labels"][config.SANDBOX_LABEL] for container in containers]

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Look at what an earlier process of this instance left; workspaces always stay.

        Return the sandboxes that are alive and of this release, the newest first: create() takes one over when it is
        asked for the same, remove() removes it. The others are removed.
        """
        for container in await self._own_containers("runtime"):
            await self._requests.ask(docker_requests.remove_container, container["Id"])
        containers = [
            container
            for container in await self._own_containers("sandbox")
            if container["Labels"][config.SANDBOX_LABEL] not in {*self._sandboxes, *self._left}
        ]
        containers.sort(key=lambda container: int(container["Created"]), reverse=True)
        reached = await asyncio.gather(*(reach(container, self._channel_root) for container in containers))
        threads = set()
        for container, left in zip(containers, reached, strict=True):
            if left is not None and left.sandbox.thread not in threads:
                threads.add(left.sandbox.thread)
                self._left[left.sandbox.id] = left
                continue
            if left is not None:
                left.channel.close()
            log.info("removing the orphaned sandbox %s", container["Labels"][config.SANDBOX_LABEL])
            await self.remove(container["Labels"][config.SANDBOX_LABEL])
        return [left.sandbox for left in self._left.values()]

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        """Remove every sandbox of this instance, and the runtime volume if no other gateway uses it.

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
                    await asyncio.gather(*(self.remove(sandbox_id) for sandbox_id in await self.owned()))
                if self._ground is not None:
                    await self._requests.ask(release_runtime, self._ground.runtime.volume)
        except EngineUnavailable as error:
            log.warning("sandboxes stay until the next start: %s", error)
        finally:
            for sandbox in self._sandboxes.values():
                sandbox.close()
            for left in self._left.values():
                left.channel.close()
            self._requests.close()

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        ground = await self._prepared()
        image = await self._image(spec.image)
        taken = await self._take_over(spec, image, ground)
        if taken is not None:
            return taken
        sandbox_id = f"{config.digest(spec.tenant, spec.thread)[:12]}-{self._new_suffix()}"
        directory = self._make_channel_directory(sandbox_id)
        channel = Channel(directory)
        body = self._config(spec, sandbox_id, ground, image)
        boot = asyncio.ensure_future(self._boot(spec, sandbox_id, body))
        try:
            # Both at once: the daemon listens before the engine has finished saying that it started the container.
            await connected(channel, boot, partial(self._refuse_dead, sandbox_id))
            await asyncio.shield(boot)
            posture = await self._verify(channel, spec, sandbox_id, ground, image)
        except BaseException as error:
            channel.close()
            discarding = self._discard(boot, sandbox_id)
            if isinstance(error, Exception):
                await asyncio.shield(discarding)
            raise
        sandbox = self._sandboxes[sandbox_id] = ChannelSandbox(sandbox_id, spec, channel, posture)
        return sandbox

    async def _take_over(self, spec: SandboxSpec, image: _Image, ground: Ground) -> Sandbox | None:
        """Return the sandbox that was left for a spec; one that does not fit it is removed first."""
        thread = config.owner(spec)[1]
        left = next((left for left in self._left.values() if left.sandbox.thread == thread), None)
        if left is None:
            return None
        sandbox_id = left.sandbox.id
        try:
            if config.made_digest(self._config(spec, sandbox_id, ground, image)) != left.made:
                raise SandboxUnavailable("it was made of another image, runtime, limits or release")
            # A caller that gives up here leaves it where it is.
            posture = await self._verify(left.channel, spec, sandbox_id, ground, image)
        except SandboxError as error:
            log.info("sandbox %s, left by an earlier process, is replaced: %s", sandbox_id, error)
            await self.remove(sandbox_id)
            return None
        if self._left.pop(sandbox_id, None) is None:
            return None  # it went idle in this very moment
        log.info("sandbox %s, left by an earlier process, is taken over", sandbox_id)
        sandbox = self._sandboxes[sandbox_id] = ChannelSandbox(sandbox_id, spec, left.channel, posture)
        return sandbox

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

    async def _image(self, name: str) -> _Image:
        found = await self._requests.ask(docker_requests.inspect_image, name)
        try:
            return _Image(found.id, config.image_volumes(found.volumes))
        except ValueError as error:
            raise SandboxUnavailable(f"image {name!r} cannot be used: {error}; build it without that VOLUME") from error

    def _config(self, spec: SandboxSpec, sandbox_id: str, ground: Ground, image: _Image) -> dict[str, Any]:
        return config.container_config(
            dataclasses.replace(spec, image=image.id),
            instance=self._instance,
            sandbox_id=sandbox_id,
            runtime=ground.runtime,
            channel_directory=str(self._channel_root / sandbox_id),
            gateway_gid=os.getgid(),
            workspace_quota=ground.workspace_quota,
            volumes=image.volumes,
        )

    async def _refuse_dead(self, sandbox_id: str) -> None:
        name = config.container_name(self._instance, sandbox_id)
        state = await self._requests.ask(docker_requests.container_state, name)
        if not state["Running"]:
            raise BundleBroken(
                f"the sandbox daemon ended at once with exit code {state['ExitCode']}; "
                f"does image {self._runtime_image!r} fit this machine? `make setup` makes it anew"
            )

    async def _verify(
        self, channel: Channel, spec: SandboxSpec, sandbox_id: str, ground: Ground, image: _Image
    ) -> pb.Posture:
        posture = await introduced(channel)
        refuse_weak(sandbox_id, posture, spec, host=ground.host, volumes=image.volumes)
        return posture

    def _discard(self, boot: asyncio.Future[None], sandbox_id: str) -> asyncio.Task[None]:
        """Remove a sandbox that did not come up, whether or not its creator waits for that."""

        async def discard() -> None:
            await asyncio.wait({boot})
            if not boot.cancelled():
                boot.exception()
            try:
                await self.remove(sandbox_id)
            except SandboxError as error:
                log.warning("sandbox %s could not be removed, the next start will: %s", sandbox_id, error)

        task = asyncio.create_task(discard())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    def _make_channel_directory(self, sandbox_id: str) -> Path:
        self._channel_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self._channel_root / sandbox_id
        directory.mkdir()
        # Root in the container has no power over other people's files, so it enters by the gateway's group.
        os.chown(directory, -1, os.getgid())
        directory.chmod(0o770)
        return directory

    async def _prepared(self) -> Ground:
        """Return what sandboxes stand on, the runtime volume filled; asks the engine once."""
        if self._ground is None:
            async with self._preparing:
                if self._ground is None:
                    self._ground = await self._requests.ask(prepare, self._runtime_image, self._instance)
        return self._ground

    async def _own_containers(self, kind: str) -> list[dict[str, Any]]:
        return await self._requests.ask(docker_requests.list_containers, self._labels(kind))

    def _labels(self, kind: str) -> dict[str, str]:
        return {config.INSTANCE_LABEL: self._instance, config.KIND_LABEL: kind}
