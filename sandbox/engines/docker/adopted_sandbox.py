"""A sandbox that an earlier process of the gateway left and that still answers, with the way to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.client.channel import Channel
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.handshake import introduced
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxError
from sandbox.filesystem import WORKSPACE
from sandbox.owner import Owner
from sandbox.sandbox import LeftSandbox
from sandbox.thread_lock import ThreadLock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdoptedSandbox:
    """`made` is the digest of how it was made, container_config.made_digest(); `lock` its thread's, held.

    `held` is the pooled sandbox whose volume has its files, "" where the volume is the thread's own.
    """

    sandbox: LeftSandbox
    made: str
    held: str
    channel: Channel
    lock: ThreadLock

    @property
    def owner(self) -> Owner:
        """Whose it is, as owner_of() gives it."""
        return self.sandbox.tenant, self.sandbox.thread


async def reach(
    container: Mapping[str, Any], owner: Owner, channel_root: Path, lock: ThreadLock
) -> AdoptedSandbox | None:
    """Return the sandbox in a container, as GET /containers/json shows it; None when it is not to be used."""
    labels = container["Labels"]
    if container["State"] != "running" or config.MADE_LABEL not in labels:
        return None
    channel = Channel(channel_root / labels[config.SANDBOX_LABEL])
    try:
        await introduced(channel)
    except SandboxError as error:
        log.info("sandbox %s is of no use any more: %s", labels[config.SANDBOX_LABEL], error)
        channel.close()
        return None
    left = LeftSandbox(labels[config.SANDBOX_LABEL], *owner)
    return AdoptedSandbox(left, labels[config.MADE_LABEL], _held(container), channel, lock)


def _held(container: Mapping[str, Any]) -> str:
    volumes = [mount.get("Name", "") for mount in container["Mounts"] if mount["Destination"] == WORKSPACE]
    name = volumes[0].rpartition("-workspace-")[2] if volumes else ""
    return name if is_pooled(name) else ""
