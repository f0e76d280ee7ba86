"""Blueprint: what a sandbox of a spec is made of on an engine, and whether one that came up is that strong."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests, FoundImage
from sandbox.engines.docker.engine_setup import EngineSetup
from sandbox.engines.docker.handshake import introduced, refuse_weak
from sandbox.engines.docker.host_kernel import HostKernel
from sandbox.errors import SandboxUnavailable
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb


@dataclass(frozen=True)
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
        """The owner_of() its spec."""
        return owner_of(self.spec)

    def body(self, sandbox_id: str, *, pooled: str = "") -> dict[str, Any]:
        """Return the configuration of a container; `pooled` as for container_config()."""
        spec = dataclasses.replace(self.spec, image=self.image_id)
        return config.container_config(spec, self.site, sandbox_id, volumes=self.volumes, pooled=pooled)

    def made(self, sandbox_id: str, *, pooled: str = "") -> str:
        """Return the digest of that configuration."""
        return config.made_digest(self.body(sandbox_id, pooled=pooled))

    async def verified(self, channel: Channel, sandbox_id: str) -> pb.Posture:
        """Return the posture of a sandbox, by its daemon; raises SandboxError where it is weaker than the spec."""
        posture = await introduced(channel)
        self.refuse_weak(sandbox_id, posture)
        return posture

    def refuse_weak(self, sandbox_id: str, posture: pb.Posture) -> None:
        """Raise PostureTooWeak for a sandbox that is weaker than the spec asks."""
        refuse_weak(sandbox_id, posture, self.spec, host=self.host, volumes=self.volumes)


class Blueprints:
    """The blueprints of one gateway instance."""

    def __init__(self, requests: DockerRequests, setup: EngineSetup, instance: str, channel_root: Path) -> None:
        self._requests = requests
        self._setup = setup
        self._instance = instance
        self._channel_root = channel_root
        self._inspections: dict[str, asyncio.Future[FoundImage]] = {}
        self.channels_identity = ""
        """Labels the containers that are made from now on; see channel_directory.py."""

    async def of(self, spec: SandboxSpec) -> Blueprint:
        """Return the blueprint of a spec; SandboxUnavailable for an image that cannot be used."""
        context = await self._setup.prepared()
        found = await self._inspected(spec.image)
        try:
            volumes = config.image_volumes(found.volumes)
        except ValueError as error:
            raise SandboxUnavailable(
                f"image {spec.image!r} cannot be used: {error}; rebuild it without that VOLUME"
            ) from error
        site = config.Site(
            self._instance,
            self._channel_root,
            os.getgid(),
            context.runtime,
            context.workspace_quota,
            self.channels_identity,
        )
        return Blueprint(spec, found.id, volumes, site, context.host)

    async def _inspected(self, name: str) -> FoundImage:
        """Inspect an image, once for all callers of the same moment."""
        inspection = self._inspections.get(name)
        if inspection is None:
            inspection = asyncio.ensure_future(self._requests.ask(docker_requests.inspect_image, name))
            self._inspections[name] = inspection
            inspection.add_done_callback(lambda _: self._inspections.pop(name))
        return await asyncio.shield(inspection)
