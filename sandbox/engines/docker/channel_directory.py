"""The directory of an engine's channels: its identity, and which directory each container on the engine uses.

The identity is a random id in a file of the directory. It moves with the directory, and labels the containers that have
their sockets there, so two directories are distinguished whatever their paths are.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.engines.containment import CHANNEL_DIRECTORY
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.docker_requests import DockerRequests, labelled_volumes, list_containers

IDENTITY = "identity"


@dataclass(frozen=True)
class ChannelsInUse:
    """The directory that a sandbox's container uses.

    `identity` is "" on containers of releases that did not label them; `path` is that of the directory then.
    """

    identity: str
    path: Path


async def channels_in_use(requests: DockerRequests, instance: str) -> Sequence[ChannelsInUse]:
    """Return which channel directory each container of an instance's sandboxes uses; raises as DockerRequests.ask."""
    labels = {config.INSTANCE_LABEL: instance, config.KIND_LABEL: "sandbox"}
    return [_channels_of(container) for container in await requests.ask(list_containers, labels)]


async def has_workspaces(requests: DockerRequests, instance: str) -> bool:
    """Return whether the engine has files of any thread of an instance; raises as DockerRequests.ask."""
    return bool(await requests.ask(labelled_volumes, {config.INSTANCE_LABEL: instance, config.KIND_LABEL: "workspace"}))


def _channels_of(container: Mapping[str, Any]) -> ChannelsInUse:
    sources = [mount["Source"] for mount in container["Mounts"] if mount["Destination"] == CHANNEL_DIRECTORY]
    path = Path(sources[0]).parent if sources else Path()
    return ChannelsInUse(container["Labels"].get(config.CHANNELS_LABEL, ""), path)


def new_identity() -> str:
    """Return an identity that no directory has."""
    return f"ch_{secrets.token_hex(12)}"


def read_identity(directory: Path) -> str | None:
    """Return a directory's identity; None where it has none. Raises OSError, and ValueError for a damaged file."""
    try:
        with (directory / IDENTITY).open("rb") as file:
            found = file.read(64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not re.fullmatch(r"ch_[0-9a-f]{24}", found):
        raise ValueError(f"{directory / IDENTITY} does not hold the id of a channel directory")
    return found


def write_identity(directory: Path, identity: str) -> str | None:
    """Give a directory an identity unless it has one; return the one that it has. Raises as read_identity()."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    half = directory / f".{IDENTITY}.{secrets.token_hex(6)}"
    try:
        half.write_text(f"{identity}\n", encoding="ascii")
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(half, directory / IDENTITY)
    finally:
        half.unlink(missing_ok=True)
    return read_identity(directory)
