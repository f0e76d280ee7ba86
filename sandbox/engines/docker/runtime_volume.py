"""What all sandboxes of an engine share: above all the runtime volume, which has the daemon's bundle.

The volume is filled from the runtime image, read-only in every sandbox, and shared by all gateways of an engine. Each
function runs as one request (docker_requests.py): a cancelled caller leaves no container behind.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import PurePosixPath

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker.build import BUILD_FILE, own_build
from sandbox.engines.docker.docker_requests import (
    Client,
    create_container,
    has_quotas,
    inspect_image,
    limits_swap,
    read_file,
    remove_container,
    remove_volume,
)
from sandbox.engines.docker.handshake import refuse_other_build
from sandbox.engines.docker.host_kernel import HostKernel, has_landlock
from sandbox.errors import ImageMissing, SandboxUnavailable

log = logging.getLogger(__name__)

_BUILD = PurePosixPath(config.RUNTIME_DIRECTORY, BUILD_FILE)


@dataclass(frozen=True)
class EngineContext:
    """What is known of an engine and its host. `workspace_quota`: its disk enforces the size of a volume."""

    runtime: config.Runtime
    host: HostKernel
    workspace_quota: bool


class BundleBroken(SandboxUnavailable):
    """The daemon did not come up: another gateway may have removed or half filled its bundle."""


def prepare(client: Client, image: str, instance: str) -> EngineContext:
    """Inspect the engine's host and fill the runtime volume; raises what fill_runtime() does."""
    host = HostKernel(swap_limited=limits_swap(client), landlock=has_landlock())
    if not host.landlock:
        log.warning("this kernel has no Landlock (Linux 5.19 on): its own code can have a sandbox killed for memory")
    quota = has_quotas(client, f"airlock-{instance}-quota-probe")
    if not quota:
        log.info("the engine's disk has no quotas: a workspace's size (workspace_mib) is watched by its daemon")
    return EngineContext(fill_runtime(client, image, instance), host, quota)


def fill_runtime(client: Client, image: str, instance: str) -> config.Runtime:
    """Return the bundle of a runtime image, its volume filled and of this release.

    Raises ImageMissing, and SandboxUnavailable for an image that is no runtime or another release's. What fills the
    volume is labelled as of `instance`.
    """
    try:
        found = inspect_image(client, image)
    except ImageMissing as error:
        raise ImageMissing(f"runtime image {image!r} is not on the engine: run `make setup` to build it") from error
    label = found.labels.get(config.COMMAND_LABEL)
    if not label:
        raise SandboxUnavailable(
            f"image {image!r} is not an Airlock runtime, because it has no label {config.COMMAND_LABEL}: run "
            "`make setup` to build one"
        )
    volume = f"airlock-runtime-{found.id.removeprefix('sha256:')[:12]}"
    if _fill(client, found.id, volume, instance) != own_build():
        # The volume may be half filled or changed: unless a gateway uses it, it is made anew. Else the image is wrong.
        release_runtime(client, volume)
        build = _fill(client, found.id, volume, instance)
        try:
            refuse_other_build(build)
        except SandboxUnavailable:
            release_runtime(client, volume)
            raise
    return config.Runtime(volume, tuple(json.loads(label)))


def release_runtime(client: Client, volume: str) -> None:
    """Remove a runtime volume unless a container uses it."""
    try:
        remove_volume(client, volume)
    except SandboxUnavailable:
        log.debug("the runtime volume stays: another gateway uses it")


def _fill(client: Client, image_id: str, volume: str, instance: str) -> str:
    """Fill a volume from the runtime image if it is empty; return what it says of its build."""
    filler = create_container(client, config.filler_config(image_id, volume, instance))
    try:
        build = read_file(client, filler, _BUILD)
    finally:
        remove_container(client, filler)
    return build.decode("ascii", "replace").strip() if build is not None else ""
