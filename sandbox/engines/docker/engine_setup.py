"""EngineSetup: what all sandboxes of an engine share, made once, and which processes of the instance serve.

Above all that is the runtime volume with the daemon's bundle. It is filled from the runtime image, read-only in every
sandbox, and shared by all gateways of an engine. Each function runs as one request (docker_requests.py): a cancelled
caller leaves no container behind.
"""

import asyncio
import json
import logging
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sandbox.engines.background import over
from sandbox.engines.build import BUILD_FILE, own_build
from sandbox.engines.containment import RUNTIME_DIRECTORY
from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import Client, DockerRequests
from sandbox.engines.docker.lock_directory import LockDirectory
from sandbox.engines.handshake import refuse_other_build
from sandbox.engines.posture import MOVING_VERSION, HostKernel, has_landlock, landlock_of, own_namespaces
from sandbox.errors import ImageMissing, SandboxUnavailable
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION
from sandbox.thread_lock import ThreadLock

log = logging.getLogger(__name__)

_FILL_ATTEMPTS = 600
_ABANDONED_ATTEMPTS = 100
_FILL_PAUSE_S = 0.05
_BUILD = PurePosixPath(RUNTIME_DIRECTORY, BUILD_FILE)


@dataclass(frozen=True)
class EngineContext:
    """What is known of an engine and its host. `workspace_quota`: its disk enforces the size of a volume."""

    runtime: config.Runtime
    host: HostKernel
    workspace_quota: bool


class BundleBroken(SandboxUnavailable):
    """The daemon did not come up: another gateway may have removed or half filled its bundle."""


def prepare(client: Client, image: str, instance: str, *, remote: bool = False) -> EngineContext:
    """Inspect the engine's host and fill the runtime volume; raises what fill_runtime() does."""
    info = docker_requests.engine_info(client)
    # Of another machine's kernel the release is known, and not what it was built with: sandboxes there may be refused.
    released = landlock_of(str(info.get("KernelVersion", "")))

    def offers(version: int) -> bool:
        return released >= version if remote else has_landlock(version)

    host = HostKernel(
        swap_limited=bool(info.get("SwapLimit", True)),
        landlock=offers(MOVING_VERSION),
        gateway_namespaces={} if remote else own_namespaces(),
    )
    if not host.landlock:
        log.warning("its kernel has no Landlock (Linux 5.19 on): its own code can have a sandbox killed for memory")
    if not offers(FILE_RULES_LANDLOCK_VERSION):
        log.warning(
            "its kernel has no Landlock of Linux 6.2: no command starts under a policy with enforcement: kernel; "
            "use a newer kernel, or enforcement: reading; `airlock doctor --config FILE` names the tenants"
        )
    quota = docker_requests.has_quotas(client, f"airlock-{instance}-quota-probe")
    if not quota:
        log.info("the engine's disk has no quotas: a workspace's size (workspace_mib) is watched by its daemon")
    return EngineContext(fill_runtime(client, image, instance), host, quota)


def fill_runtime(client: Client, image: str, instance: str) -> config.Runtime:
    """Return the bundle of a runtime image, its volume filled and of this release.

    Raises ImageMissing, and SandboxUnavailable for an image that is no runtime or another release's. What fills the
    volume is labelled as of `instance`.
    """
    try:
        found = docker_requests.inspect_image(client, image)
    except ImageMissing as error:
        raise ImageMissing(
            f"runtime image {image!r} is not on the engine: run `airlock images build` to build it"
        ) from error
    label = found.labels.get(config.COMMAND_LABEL)
    if not label:
        raise SandboxUnavailable(
            f"image {image!r} is not an Airlock runtime, because it has no label {config.COMMAND_LABEL}: run "
            "`airlock images build` to build one"
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
    return config.Runtime(volume, tuple(json.loads(label)), found.id)


def release_runtime(client: Client, volume: str) -> None:
    """Remove a runtime volume unless a container uses it."""
    try:
        docker_requests.remove_volume(client, volume)
    except SandboxUnavailable:
        log.debug("the runtime volume stays: another gateway uses it")


def _fill(client: Client, image_id: str, volume: str, instance: str) -> str:
    """Fill a volume from the runtime image if it is empty; return what it says of its build."""
    filler = _filler(client, config.filler_config(image_id, volume, instance), f"{volume}-filler")
    try:
        build = docker_requests.read_file(client, filler, _BUILD)
    finally:
        docker_requests.remove_container(client, filler)
    return build.decode("ascii", "replace").strip() if build is not None else ""


def _filler(client: Client, filler_config: dict[str, Any], name: str) -> str:
    """Create the container whose creation fills the volume.

    Its name is taken from before the engine copies until the container is removed, so one process of all gateways
    fills at a time, and each finds a volume that is empty or complete.
    """
    other, seen = "", 0
    for _ in range(_FILL_ATTEMPTS):
        filler = docker_requests.create_unless_taken(client, filler_config, name)
        if filler is not None:
            return filler
        # The container of another process is there from when the engine has copied; then it is removed in a moment.
        found = docker_requests.container_id(client, name)
        other, seen = found, seen + 1 if found == other else 0
        if other and seen >= _ABANDONED_ATTEMPTS:
            docker_requests.remove_container(client, other)  # its process died
        time.sleep(_FILL_PAUSE_S)
    return docker_requests.create_container(client, filler_config, name)


class EngineSetup:
    """Fills the runtime volume, and has the serving lock from then on: each process that serves shares it."""

    def __init__(self, requests: DockerRequests, locks: LockDirectory, instance: str, runtime_image: str) -> None:
        self._requests = requests
        self._locks = locks
        self._instance = instance
        self._runtime_image = runtime_image
        self._preparing: asyncio.Future[EngineContext] | None = None
        self.context: EngineContext | None = None  # once prepared() has asked
        self._engine_id = ""
        self._serving: ThreadLock | None = None
        # Whether no other process of the instance served when this one stopped serving.
        self._was_last = False

    async def engine_id(self) -> str:
        if not self._engine_id:
            self._engine_id = str((await self._requests.ask(docker_requests.engine_info)).get("ID") or "")
        return self._engine_id

    async def prepared(self) -> EngineContext:
        """Return the context of all sandboxes, the runtime volume filled; asks the engine once.

        A cancelled caller does not stop the work: what fills the volume is removed by the same request.
        """
        if self.context is None:
            if self._preparing is None or self._preparing.done():
                self._preparing = asyncio.ensure_future(self._prepare())
            return await asyncio.shield(self._preparing)
        return self.context

    async def runtime(self) -> config.Runtime:
        """Return the bundle of the runtime image, as prepared() does."""
        return (await self.prepared()).runtime

    async def settled(self) -> None:
        """Wait until nothing is being prepared."""
        await over(self._preparing)

    async def _prepare(self) -> EngineContext:
        self.close()
        self._serving = serving = await self._locks.enter_serving()
        try:
            self.context = await self._requests.ask(
                prepare, self._runtime_image, self._instance, remote=self._requests.relays is not None
            )
        finally:
            serving.hold()
            serving.leave()
        return self.context

    def forget(self) -> None:
        self.context = None

    async def refill(self) -> None:
        """Have the runtime volume filled again: only an empty one is, so it is removed if no sandbox uses it."""
        await self.release()
        self.forget()

    async def stop_serving(self) -> bool:
        """Give up the serving lock; return whether no other process of the instance serves."""
        self.close()
        with closing(await self._locks.enter_serving()) as serving:
            if not serving.hold_alone():
                return False
            serving.retire()
            self._was_last = True
            return True

    async def is_last(self) -> bool:
        """Return whether this process served, and was the last of the instance; it serves no more."""
        return self._was_last or (self._serving is not None and await self.stop_serving())

    async def release(self) -> None:
        if self.context is not None:
            await self._requests.ask(release_runtime, self.context.runtime.volume)

    def close(self) -> None:
        if self._serving is not None:
            self._serving.close()
            self._serving = None
