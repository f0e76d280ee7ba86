"""DockerEngine: sandboxes as containers of a Docker engine. The only file that imports docker.

The docker package blocks, so every request to the engine runs in a small thread pool. What is inside a container is
decided in container_config.py; here is how one comes up, is verified and goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
import os
import secrets
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env

from sandbox import container_config as config
from sandbox.build import BUILD_FILE, own_build
from sandbox.channel import Channel
from sandbox.channel_sandbox import ChannelSandbox
from sandbox.engine import Sandbox, SandboxSpec
from sandbox.errors import EngineUnavailable, ImageMissing, SandboxError, SandboxUnavailable
from sandbox.greeting import introduced, refuse_other_build, refuse_weak
from sandbox.host_kernel import HostKernel, has_landlock
from sandbox.left_sandbox import LeftSandbox
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_ENGINE_THREADS = 8
_ENGINE_TIMEOUT_S = 60
_BOOT_TIMEOUT_S = 10.0
# How often a daemon that is coming up is tried, and how often the engine is asked whether it has already died.
_CONNECT_INTERVAL_S = 0.002
_INSPECT_INTERVAL_S = 0.25
_REMOVAL_TIMEOUT_S = 30
_CONFLICT_STATUS = 409

# What engine 20.10 says of a runtime that it does not have, and what later ones do.
_UNKNOWN_RUNTIME = ("unknown runtime specified", "invalid runtime name")

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself; `images` are the names, without tags, of what it has."""

    version: str
    api_version: str
    storage_driver: str
    seccomp: bool
    runtimes: frozenset[str]
    images: frozenset[str]


@dataclass(frozen=True)
class _Image:
    """A tenant's image: the tag may be another's by the time it is used, the id not."""

    id: str
    volumes: tuple[str, ...]


@dataclass(frozen=True)
class _Left:
    """A sandbox that an earlier process left, and the way to it; `made` is the digest of how."""

    sandbox: LeftSandbox
    made: str
    channel: Channel


class _BundleBroken(SandboxUnavailable):
    """The daemon did not come up, which a bundle that another gateway removed or half filled would explain."""


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
        self._base_url = base_url
        self._address = base_url or os.environ.get("DOCKER_HOST") or _DEFAULT_ADDRESS
        self._new_suffix = new_suffix
        self._threads = ThreadPoolExecutor(_ENGINE_THREADS, thread_name_prefix="airlock-docker")
        self._client: docker.APIClient | None = None
        self._connecting = threading.Lock()
        self._preparing = asyncio.Lock()
        self._runtime: config.Runtime | None = None
        self._host = HostKernel()
        self._workspace_quota = False
        self._sandboxes: dict[str, ChannelSandbox] = {}
        self._left: dict[str, _Left] = {}
        self._closed = False
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def bounds_workspaces(self) -> bool:
        """Whether the engine's disk enforces workspace_bytes in all; else it holds for each file only."""
        return self._workspace_quota

    async def describe(self) -> EngineFacts:
        """Return what the engine says of itself; EngineUnavailable when it does not answer."""
        return await self._ask(_describe)

    async def prepare(self) -> None:
        """Make ready what every sandbox needs; raises SandboxError when none could be made."""
        await self._prepared()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox: started, greeted, its posture verified.

        One that an earlier process left for the same tenant and thread, made in the very same way, is taken over.
        """
        try:
            return await self._create(spec)
        except _BundleBroken as error:
            log.warning("making sandbox again after filling the runtime volume: %s", error)
            if self._runtime is not None:
                # Only an empty one is filled, and one that is half filled is not empty.
                await self._release_runtime(self._runtime.volume)
            self._runtime = None
            return await self._create(spec)

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox, not its workspace. One that is gone is no error."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.close()
        left = self._left.pop(sandbox_id, None)
        if left is not None:
            left.channel.close()
        await self._ask(lambda client: _remove_container(client, config.container_name(self._instance, sandbox_id)))
        await self._run(lambda: shutil.rmtree(self._channel_root / sandbox_id, ignore_errors=True))

    async def remove_workspace(self, tenant: str, thread: str) -> None:
        """Remove a thread's files for good; its sandbox must be gone. Files that are gone are no error."""
        await self._remove_volume(config.workspace_volume(self._instance, tenant, thread))

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread of this instance for good."""
        if self._removals:  # a sandbox that never came up may still hold its workspace
            await asyncio.wait(self._removals)
        filters = {"label": [f"{config.INSTANCE_LABEL}={self._instance}", f"{config.KIND_LABEL}=workspace"]}
        listed = await self._ask(lambda client: client.volumes(filters=filters))
        left = []
        for volume in listed["Volumes"] or ():
            try:
                await self._remove_volume(volume["Name"])
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
            await self._ask(partial(_remove_container, name=container["Id"]))
        containers = [
            container
            for container in await self._own_containers("sandbox")
            if container["Labels"][config.SANDBOX_LABEL] not in {*self._sandboxes, *self._left}
        ]
        containers.sort(key=lambda container: int(container["Created"]), reverse=True)
        reached = await asyncio.gather(*map(self._reach, containers))
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
            if self._client is not None:
                if not keep_sandboxes:
                    await asyncio.gather(*(self.remove(sandbox_id) for sandbox_id in await self.owned()))
                if self._runtime is not None:
                    await self._release_runtime(self._runtime.volume)
        except EngineUnavailable as error:
            log.warning("sandboxes stay until the next start: %s", error)
        finally:
            for sandbox in self._sandboxes.values():
                sandbox.close()
            for left in self._left.values():
                left.channel.close()
            self._threads.shutdown(wait=False)
            if self._client is not None:
                self._client.close()

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        runtime = await self._prepared()
        image = await self._ask(lambda client: _inspect_image(client, spec.image))
        taken = await self._take_over(spec, image, runtime)
        if taken is not None:
            return taken
        sandbox_id = f"{config.digest(spec.tenant, spec.thread)[:12]}-{self._new_suffix()}"
        directory = self._make_channel_directory(sandbox_id)
        channel = Channel(directory)
        body = self._config(spec, sandbox_id, runtime, image)
        boot = asyncio.ensure_future(self._ask(lambda client: self._boot(client, spec, sandbox_id, body)))
        try:
            # Both at once: the daemon listens before the engine has finished saying that it started the container.
            await self._connected(channel, boot, sandbox_id)
            await asyncio.shield(boot)
            posture = await self._verify(channel, spec, sandbox_id, image)
        except BaseException as error:
            channel.close()
            discarding = self._discard(boot, sandbox_id)
            if isinstance(error, Exception):
                await asyncio.shield(discarding)
            raise
        sandbox = self._sandboxes[sandbox_id] = ChannelSandbox(sandbox_id, spec, channel, posture)
        return sandbox

    async def _reach(self, container: dict[str, Any]) -> _Left | None:
        """Return a sandbox that an earlier process made, None when it is not to be used."""
        labels = container["Labels"]
        directory = self._channel_root / labels[config.SANDBOX_LABEL]
        if container["State"] != "running" or config.MADE_LABEL not in labels:
            return None
        channel = Channel(directory)
        try:
            await introduced(channel)
        except SandboxError as error:
            log.info("sandbox %s is of no use any more: %s", labels[config.SANDBOX_LABEL], error)
            channel.close()
            return None
        left = LeftSandbox(labels[config.SANDBOX_LABEL], labels[config.TENANT_LABEL], labels[config.THREAD_LABEL])
        return _Left(left, labels[config.MADE_LABEL], channel)

    async def _take_over(self, spec: SandboxSpec, image: _Image, runtime: config.Runtime) -> Sandbox | None:
        """Return the sandbox that was left for a spec; one that does not fit it is removed first."""
        thread = config.owner(spec)[1]
        left = next((left for left in self._left.values() if left.sandbox.thread == thread), None)
        if left is None:
            return None
        sandbox_id = left.sandbox.id
        try:
            if config.made_digest(self._config(spec, sandbox_id, runtime, image)) != left.made:
                raise SandboxUnavailable("it was made of another image, runtime, limits or release")
            # A caller that gives up here leaves it where it is.
            posture = await self._verify(left.channel, spec, sandbox_id, image)
        except SandboxError as error:
            log.info("sandbox %s, left by an earlier process, is replaced: %s", sandbox_id, error)
            await self.remove(sandbox_id)
            return None
        if self._left.pop(sandbox_id, None) is None:
            return None  # it went idle in this very moment
        log.info("sandbox %s, left by an earlier process, is taken over", sandbox_id)
        sandbox = self._sandboxes[sandbox_id] = ChannelSandbox(sandbox_id, spec, left.channel, posture)
        return sandbox

    def _boot(self, client: docker.APIClient, spec: SandboxSpec, sandbox_id: str, body: dict[str, Any]) -> None:
        """Create and start the container; runs in a thread."""
        name = config.container_name(self._instance, sandbox_id)
        body["Labels"][config.MADE_LABEL] = config.made_digest(body)
        try:
            _create_container(client, body, name)
            client.start(name)
        except ImageNotFound as error:
            raise _image_missing(spec.image) from error
        except APIError as error:
            reason = str(error.explanation or error)
            if any(said in reason.lower() for said in _UNKNOWN_RUNTIME):
                raise SandboxUnavailable(
                    f"runtime {spec.runtime!r} is not known to the engine; install it and name it in daemon.json"
                ) from error
            if config.RUNTIME_DIRECTORY in reason:
                raise _BundleBroken(f"the daemon could not be started: {reason}") from error
            raise SandboxUnavailable(f"the engine did not start a sandbox of image {spec.image!r}: {reason}") from error

    def _config(self, spec: SandboxSpec, sandbox_id: str, runtime: config.Runtime, image: _Image) -> dict[str, Any]:
        return config.container_config(
            dataclasses.replace(spec, image=image.id),
            instance=self._instance,
            sandbox_id=sandbox_id,
            runtime=runtime,
            channel_directory=str(self._channel_root / sandbox_id),
            gateway_gid=os.getgid(),
            workspace_quota=self._workspace_quota,
            volumes=image.volumes,
        )

    async def _connected(self, channel: Channel, boot: asyncio.Future[None], sandbox_id: str) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = inspect_at_s = float("inf")
        while True:
            try:
                await channel.connect()
                return
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            now_s = loop.time()
            if boot.done():
                boot.result()
                deadline_s = min(deadline_s, now_s + _BOOT_TIMEOUT_S)
                inspect_at_s = min(inspect_at_s, now_s + _INSPECT_INTERVAL_S)
            if now_s > deadline_s:
                raise SandboxUnavailable(f"the sandbox daemon did not come up within {_BOOT_TIMEOUT_S:.0f} s")
            if now_s > inspect_at_s:
                inspect_at_s = now_s + _INSPECT_INTERVAL_S
                await self._refuse_dead(sandbox_id)
            await asyncio.sleep(_CONNECT_INTERVAL_S)

    async def _refuse_dead(self, sandbox_id: str) -> None:
        name = config.container_name(self._instance, sandbox_id)
        state = (await self._ask(lambda client: client.inspect_container(name)))["State"]
        if not state["Running"]:
            raise _BundleBroken(
                f"the sandbox daemon ended at once with exit code {state['ExitCode']}; "
                f"does image {self._runtime_image!r} fit this machine? `make setup` makes it anew"
            )

    async def _verify(self, channel: Channel, spec: SandboxSpec, sandbox_id: str, image: _Image) -> pb.Posture:
        posture = await introduced(channel)
        refuse_weak(sandbox_id, posture, spec, host=self._host, volumes=image.volumes)
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

    async def _prepared(self) -> config.Runtime:
        """Return the runtime, its volume filled; asks the engine once."""
        if self._runtime is None:
            async with self._preparing:
                if self._runtime is None:
                    self._runtime = await self._ask(self._prepare)
        return self._runtime

    def _prepare(self, client: docker.APIClient) -> config.Runtime:
        self._host = HostKernel(swap_limited=bool(client.info().get("SwapLimit", True)), landlock=has_landlock())
        if not self._host.landlock:
            log.warning(
                "this kernel has no Landlock (Linux 5.19 on): its own code can have a sandbox killed for memory"
            )
        self._workspace_quota = self._has_quotas(client)
        try:
            image: dict[str, Any] = client.inspect_image(self._runtime_image)  # type: ignore[no-untyped-call]
        except ImageNotFound as error:
            raise ImageMissing(
                f"runtime image {self._runtime_image!r} is not on the engine; `make setup` makes it"
            ) from error
        label = (image["Config"].get("Labels") or {}).get(config.COMMAND_LABEL)
        if not label:
            raise SandboxUnavailable(
                f"image {self._runtime_image!r} has no label {config.COMMAND_LABEL} and so is no Airlock runtime; "
                "`make setup` makes one"
            )
        volume = f"airlock-runtime-{image['Id'].removeprefix('sha256:')[:12]}"
        if self._fill(client, image["Id"], volume) != own_build():
            # The volume may be half filled or changed: if nobody uses it, it is made anew. Else the image is another's.
            _remove_volume_if_free(client, volume)
            build = self._fill(client, image["Id"], volume)
            try:
                refuse_other_build(build)
            except SandboxUnavailable:
                _remove_volume_if_free(client, volume)
                raise
        return config.Runtime(volume, tuple(json.loads(label)))

    def _fill(self, client: docker.APIClient, image_id: str, volume: str) -> str:
        """Fill a volume from the runtime image if it is empty; return what it says of its build."""
        filler = _create_container(client, config.filler_config(image_id, volume, self._instance), None)
        try:
            return _build_in(client, filler)
        finally:
            _remove_container(client, filler)

    def _has_quotas(self, client: docker.APIClient) -> bool:
        """Return whether volumes can be given a size: only if the engine's disk has project quotas."""
        probe = f"airlock-{self._instance}-quota-probe"
        try:
            client.create_volume(probe, driver="local", driver_opts={"size": "1m"})
        except APIError:
            log.warning("the engine's disk has no quotas: workspace_bytes is enforced for each file only")
            return False
        client.remove_volume(probe)
        return True

    async def _release_runtime(self, volume: str) -> None:
        try:
            await self._remove_volume(volume)
        except SandboxUnavailable:
            log.debug("the runtime volume stays: another gateway uses it")

    async def _remove_volume(self, name: str) -> None:
        def remove(client: docker.APIClient) -> None:
            try:
                client.remove_volume(name)
            except NotFound:
                return
            except APIError as error:
                raise SandboxUnavailable(f"volume {name} was not removed: {error.explanation}") from error

        await self._ask(remove)

    async def _own_containers(self, kind: str) -> list[dict[str, Any]]:
        filters = {"label": [f"{config.INSTANCE_LABEL}={self._instance}", f"{config.KIND_LABEL}={kind}"]}
        found: list[dict[str, Any]] = await self._ask(lambda client: client.containers(all=True, filters=filters))
        return found

    async def _ask(self, request: Callable[[docker.APIClient], _Value]) -> _Value:
        """Run a request to the engine in the pool; its failures come back as sandbox errors."""
        return await self._run(lambda: self._request(request))

    async def _run(self, work: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _request(self, request: Callable[[docker.APIClient], _Value]) -> _Value:
        try:
            return request(self._connected_client())
        except APIError as error:
            raise SandboxUnavailable(f"the Docker engine refused: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise EngineUnavailable(
                f"the Docker engine at {self._address} does not answer ({error}). "
                "Start it, name another in DOCKER_HOST, or let this user use its socket."
            ) from error

    def _connected_client(self) -> docker.APIClient:
        with self._connecting:
            if self._client is None:
                if self._address.startswith("unix://"):
                    # Asked first because docker hides the kernel's reason and leaks the socket when this fails.
                    with socket.socket(socket.AF_UNIX) as probe:
                        probe.settimeout(_ENGINE_TIMEOUT_S)
                        probe.connect(self._address.removeprefix("unix://"))
                where = {"base_url": self._base_url} if self._base_url else kwargs_from_env()
                self._client = docker.APIClient(
                    **where, version="auto", timeout=_ENGINE_TIMEOUT_S, max_pool_size=_ENGINE_THREADS
                )
            return self._client


def _describe(client: docker.APIClient) -> EngineFacts:
    info, version = client.info(), client.version()
    return EngineFacts(
        version=version["Version"],
        api_version=version["ApiVersion"],
        storage_driver=info["Driver"],
        seccomp=any("seccomp" in option for option in info.get("SecurityOptions") or ()),
        runtimes=frozenset(info.get("Runtimes") or ()),
        images=frozenset(tag.rpartition(":")[0] for image in client.images() for tag in image["RepoTags"] or ()),
    )


def _remove_volume_if_free(client: docker.APIClient, name: str) -> None:
    with contextlib.suppress(APIError):
        client.remove_volume(name)


def _build_in(client: docker.APIClient, container: str) -> str:
    try:
        pieces, _ = client.get_archive(container, f"{config.RUNTIME_DIRECTORY}/{BUILD_FILE}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            file = archive.extractfile(BUILD_FILE)
            return file.read().decode("ascii", "replace").strip() if file is not None else ""
    except (NotFound, tarfile.TarError, KeyError):
        return ""


def _inspect_image(client: docker.APIClient, name: str) -> _Image:
    try:
        found: dict[str, Any] = client.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound as error:
        raise _image_missing(name) from error
    try:
        return _Image(found["Id"], config.image_volumes(found["Config"].get("Volumes") or ()))
    except ValueError as error:
        raise SandboxUnavailable(f"image {name!r} cannot be used: {error}; build it without that VOLUME") from error


def _image_missing(name: str) -> ImageMissing:
    return ImageMissing(f"image {name!r} is not on the engine; run `make setup` for Airlock's own images, or pull it")


def _create_container(client: docker.APIClient, body: dict[str, Any], name: str | None) -> str:
    created: dict[str, Any] = client.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
    return str(created["Id"])


def _remove_container(client: docker.APIClient, name: str) -> None:
    try:
        # v: anonymous volumes that the image declared go too; the named ones, workspaces, stay.
        client.remove_container(name, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != _CONFLICT_STATUS:
            raise
        # Somebody is removing it already; it is gone when that is done.
        with contextlib.suppress(NotFound):
            client.wait(name, timeout=_REMOVAL_TIMEOUT_S, condition="removed")
