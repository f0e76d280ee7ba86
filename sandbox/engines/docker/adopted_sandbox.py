"""A sandbox that an earlier process of the gateway left and that still answers, with the channel to it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.containers import Container, Containers, id_of
from sandbox.engines.docker.handshake import introduced
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxError
from sandbox.filesystem import WORKSPACE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdoptedSandbox:
    """`made` is the digest of its configuration; `pooled` the id of the pooled sandbox whose volume it has, or ""."""

    id: str
    made: str
    pooled: str
    channel: Channel


async def reach(container: Container, containers: Containers) -> AdoptedSandbox | None:
    """Return the sandbox in a container; None when it is not to be used."""
    labels = container["Labels"]
    if container["State"] != "running" or config.MADE_LABEL not in labels:
        return None
    sandbox_id = id_of(container)
    channel = containers.channel(sandbox_id)
    try:
        await introduced(channel)
    except SandboxError as error:
        log.info("sandbox %s is of no use any more: %s", sandbox_id, error)
        channel.close()
        return None
    return AdoptedSandbox(sandbox_id, labels[config.MADE_LABEL], _pooled(container), channel)


def _pooled(container: Container) -> str:
    volumes = [mount.get("Name", "") for mount in container["Mounts"] if mount["Destination"] == WORKSPACE]
    name = volumes[0].rpartition("-workspace-")[2] if volumes else ""
    return name if is_pooled(name) else ""
