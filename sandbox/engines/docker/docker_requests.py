"""Requests to a Docker engine, and what its refusals mean. The only file that imports docker.

The docker package blocks, so requests run in threads. DockerRequests.ask() runs there a function that takes a client,
such as those below, each of which is one request.
"""

import contextlib
import io
import os
import re
import socket
import tarfile
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env
from urllib3.connection import HTTPConnection

from sandbox.engines.docker.engine_address import RelaySite, engine_address, problem_of
from sandbox.engines.docker.request_threads import THREADS, RequestThreads
from sandbox.engines.docker.ssh_tunnel import SshTunnel
from sandbox.errors import EngineFull, EngineUnavailable, ImageMissing, RuntimeMissing, SandboxUnavailable

_TIMEOUT_S = 60
_CONNECT_TIMEOUT_S = 10
_LOST_MS = 15_000
_CONFLICT_STATUS = 409

# What engine 20.10 says of a runtime that it does not have, and what later ones do.
_UNKNOWN_RUNTIME = ("unknown runtime specified", "invalid runtime name")
# What the kernel says, by way of an engine, that has nothing left for one more container.
_FULL = ("no space left on device", "cannot allocate memory", "resource temporarily unavailable")

Client: TypeAlias = docker.APIClient
_Value = TypeVar("_Value")
_Asked = ParamSpec("_Asked")


@dataclass(frozen=True)
class FoundImage:
    """An image of the engine: the tag may be another's by the time it is used, the id not."""

    id: str
    volumes: tuple[str, ...]
    labels: Mapping[str, str]


class StartRefused(SandboxUnavailable):
    """The engine did not start a container; str() is its reason."""


class _EngineClient(docker.APIClient):
    """A client that ignores REQUESTS_CA_BUNDLE and HTTPS_PROXY, which requests would prefer to what it is given."""

    def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
        self.trust_env = False
        return super().merge_environment_settings(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """Give up on a machine that does not answer at all sooner than on an engine that is busy."""
        if not self.base_url.startswith("http+docker:"):
            kwargs["timeout"] = (_CONNECT_TIMEOUT_S, kwargs.get("timeout"))
        return super().send(*args, **kwargs)

    def notice_lost_peers(self) -> None:
        """Have connections over the network end when what was sent is not acknowledged."""
        if self.base_url.startswith("https:"):
            adapter: Any = self.get_adapter(self.base_url)
            options = [*HTTPConnection.default_socket_options, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)]
            adapter.init_poolmanager(THREADS, THREADS, socket_options=options)


class DockerRequests:
    """The way to one engine. `base_url` is its address, None means DOCKER_HOST or the default socket.

    `named_in` says where that address is configured, for the error of an engine that does not answer. `environment` has
    docker's own variables, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, for one over the network; None means the process's.
    `relays` is where the relays of sandboxes are, None for an engine on this machine.
    """

    def __init__(
        self,
        base_url: str | None = None,
        named_in: str = "base_url",
        *,
        environment: Mapping[str, str] | None = None,
        relays: RelaySite | None = None,
    ) -> None:
        self.relays = relays
        self._environment = os.environ if environment is None else environment
        self._named_in = named_in if base_url else "DOCKER_HOST"
        self._address = engine_address(base_url)
        self._tunnel = SshTunnel(self._address) if self._address.startswith("ssh://") else None
        self.threads = RequestThreads()
        self._client: Client | None = None
        self._connecting = threading.Lock()

    @property
    def connected(self) -> bool:
        return self._client is not None

    async def ask(
        self, request: Callable[Concatenate[Client, _Asked], _Value], *args: _Asked.args, **kwargs: _Asked.kwargs
    ) -> _Value:
        """Run a request in the pool; EngineUnavailable for no answer, SandboxUnavailable for a refusal."""
        return await self.threads.requests.begin(lambda: self.ask_here(request, *args, **kwargs))

    def ask_here(
        self, request: Callable[Concatenate[Client, _Asked], _Value], *args: _Asked.args, **kwargs: _Asked.kwargs
    ) -> _Value:
        """Make a request in the caller's own thread, which it blocks; raises as `ask`."""
        return self._request(lambda client: request(client, *args, **kwargs))

    async def ping(self) -> None:
        """Return when the engine answers, behind no other request; raises as `ask`."""
        await self.threads.pings.begin(lambda: self._request(docker.APIClient.ping))

    async def remove_volume(self, name: str, *, tenant: str, before: Callable[[], None] | None = None) -> bool:
        """Remove a volume with a tenant's files, in that tenant's turn, after `before`; raises and returns as `ask`."""

        def remove(client: Client) -> bool:
            if before is not None:
                before()
            return remove_volume(client, name)

        return await self.threads.removals.run(lambda: self._request(remove), tenant=tenant)

    def archive_of(self, container: str, path: str) -> Generator[bytes, None, None]:
        """Yield a tar stream of a path in a container, its names beginning with the last part of the path; it blocks.

        Raises as `ask`. A caller that does not read to the end closes it: until then the engine blocks the container.
        """
        pieces, _ = self._request(lambda client: client.get_archive(container, path, chunk_size=1024 * 1024))
        with contextlib.closing(pieces):
            while (piece := self._request(lambda _: next(pieces, b""))) != b"":
                yield piece

    def put_archive(self, container: str, path: str, pieces: Iterable[bytes]) -> None:
        """Unpack a tar stream below a path in a container; it blocks. Raises what making a piece raises."""
        failed: list[Exception] = []

        def noting() -> Iterator[bytes]:
            try:
                yield from pieces
            except Exception as error:
                failed.append(error)
                raise

        try:
            self._request(lambda client: client.put_archive(container, path, noting()))
        except Exception:
            if failed:
                raise failed[0] from None
            raise

    def close(self) -> None:
        """Let go of the engine; what is under way is not waited for."""
        self.threads.close()
        if self._client is not None:
            self._client.close()
        if self._tunnel is not None:
            self._tunnel.close()

    def _request(self, request: Callable[[Client], _Value]) -> _Value:
        try:
            return request(self._connected_client())
        except APIError as error:
            raise SandboxUnavailable(f"the Docker engine refused the request: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise EngineUnavailable(
                f"the Docker engine at {self._address} does not answer ({error}). Start it, set another address "
                f"in {self._named_in}, or give this user access to its socket."
            ) from error

    def _connected_client(self) -> Client:
        with self._connecting:
            if self._tunnel is not None:
                self._tunnel.open()
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> Client:
        if problem := problem_of(self._address, self._environment):
            raise DockerException(problem)
        address = self._address if self._tunnel is None else f"unix://{self._tunnel.socket}"
        where = kwargs_from_env({**self._environment, "DOCKER_HOST": address})
        if address.startswith("unix://"):
            # Probed first because docker hides the kernel's reason and leaks the socket when this fails.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_TIMEOUT_S)
                probe.connect(address.removeprefix("unix://"))
            where.pop("tls", None)
        client = _EngineClient(**where, version="auto", timeout=_TIMEOUT_S, max_pool_size=THREADS)
        client.notice_lost_peers()
        return client


def engine_info(client: Client) -> dict[str, Any]:
    """Return what GET /info does: the engine's own id, where its data are, what its kernel limits."""
    return dict(client.info())


def inspect_image(client: Client, name: str) -> FoundImage:
    """Return an image that is on the engine; ImageMissing when it is not."""
    try:
        found: dict[str, Any] = client.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound as error:
        raise _image_missing(name) from error
    config = found["Config"]
    return FoundImage(found["Id"], tuple(config.get("Volumes") or ()), config.get("Labels") or {})


def list_containers(client: Client, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the containers that have these labels, running or not, as GET /containers/json does.

    A label that is "" may have any value.
    """
    return list(client.containers(all=True, filters=_labelled(labels)))


def named_containers(client: Client, names: Collection[str]) -> list[dict[str, Any]]:
    """Return the containers of these names, running or not, as GET /containers/json does."""
    wanted = {f"/{name}" for name in names}
    filters = {"name": [f"^/?{re.escape(name)}$" for name in sorted(names)]}
    found = client.containers(all=True, filters=filters) if names else []
    return [container for container in found if wanted & {*container["Names"]}]


def create_container(client: Client, body: dict[str, Any], name: str | None = None) -> str:
    """Create a container of the body of POST /containers/create; return its id."""
    return str(client.create_container_from_config(body, name)["Id"])  # type: ignore[no-untyped-call]


def create_unless_taken(client: Client, body: dict[str, Any], name: str) -> str | None:
    """Create a container; return its id, None while another one has the name."""
    try:
        return create_container(client, body, name)
    except APIError as error:
        if error.status_code != _CONFLICT_STATUS:
            raise
        return None


def container_id(client: Client, name: str) -> str:
    """Return the id of the container that has a name, "" if there is none or it is still being created."""
    try:
        return str(client.inspect_container(name)["Id"])
    except NotFound:
        return ""


def start_container(client: Client, body: dict[str, Any], name: str, *, image: str) -> None:
    """Create and start a container; ImageMissing names `image`, StartRefused has the engine's own reason."""
    try:
        create_container(client, body, name)
        client.start(name)
    except ImageNotFound as error:
        raise _image_missing(image) from error
    except APIError as error:
        reason = str(error.explanation or error)
        if any(said in reason.lower() for said in _UNKNOWN_RUNTIME):
            raise RuntimeMissing(
                f"runtime {body['HostConfig']['Runtime']!r} is not registered with the engine: install it and add "
                "it to daemon.json"
            ) from error
        if any(said in reason.lower() for said in _FULL):
            raise EngineFull(f"the engine's host has no resources for another sandbox: {reason}") from error
        raise StartRefused(reason) from error


def run_container(client: Client, body: dict[str, Any], name: str, *, timeout_s: int) -> int:
    """Create and start a container; return what it exits with. The caller removes it."""
    create_container(client, body, name)
    client.start(name)
    return int(client.wait(name, timeout=timeout_s)["StatusCode"])


def start_again(client: Client, name: str) -> None:
    """Start a container that was stopped; one that runs is no error."""
    client.start(name)


def stop_container(client: Client, name: str) -> None:
    """Kill what runs in a container, which stays. One that does not run is no error."""
    client.stop(name, timeout=0)


def container_state(client: Client, name: str) -> dict[str, Any]:
    """Return the State of GET /containers/{name}/json."""
    return dict(client.inspect_container(name)["State"])


def container_stats(client: Client, name: str) -> dict[str, Any] | None:
    """Return one reading of GET /containers/{name}/stats, with no second one awaited; None where it is gone."""
    try:
        return dict(client.stats(name, stream=False, one_shot=True))
    except NotFound:
        return None


def remove_container(client: Client, name: str) -> None:
    """Remove a container, running or not. One that is gone is no error."""
    try:
        # v: anonymous volumes that the image declared go too; the named ones, workspaces, stay.
        client.remove_container(name, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != _CONFLICT_STATUS:
            raise
        # Its removal is already under way.
        with contextlib.suppress(NotFound):
            client.wait(name, timeout=30, condition="removed")


def read_file(client: Client, container: str, path: PurePosixPath) -> bytes | None:
    """Return the content of a file in a container, None when no such file is there."""
    try:
        pieces, _ = client.get_archive(container, str(path))
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            file = archive.extractfile(path.name)
            return file.read() if file is not None else None
    except (NotFound, tarfile.TarError, KeyError):
        return None


def labelled_volumes(client: Client, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """Return the labels of the volumes that have these, by name. One that is "" may have any value."""
    found = client.volumes(filters=_labelled(labels))["Volumes"] or ()
    return {volume["Name"]: volume["Labels"] or {} for volume in found}


def volume_labels(client: Client, name: str) -> Mapping[str, str] | None:
    """Return the labels of a volume; None where there is none of this name."""
    try:
        return client.inspect_volume(name)["Labels"] or {}
    except NotFound:
        return None


def is_mounted(client: Client, name: str) -> bool:
    """Return whether a container has a volume, running or not."""
    return bool(client.containers(all=True, filters={"volume": [name]}))


def make_volume(client: Client, name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Make a volume unless there is one of this name, and return the labels that it has, which are the first one's."""
    return client.create_volume(name, driver="local", driver_opts={}, labels=dict(labels))["Labels"] or {}


def has_quotas(client: Client, probe: str) -> bool:
    """Return whether volumes can be given a size: only if the engine's disk has project quotas.

    `probe` is the name of a volume that is made and removed to know it.
    """
    try:
        client.create_volume(probe, driver="local", driver_opts={"size": "1m"})
    except APIError:
        return False
    client.remove_volume(probe)
    return True


def remove_volume(client: Client, name: str) -> bool:
    """Remove a volume; return whether there was one. SandboxUnavailable while it is in use."""
    try:
        client.remove_volume(name)
    except NotFound:
        return False
    except APIError as error:
        # Of a tree that is too deep it says each name.
        said = str(error.explanation)[:500]
        raise SandboxUnavailable(f"volume {name} could not be removed: {said}") from error
    return True


def _labelled(labels: Mapping[str, str]) -> dict[str, list[str]]:
    return {"label": [f"{name}={value}" if value else name for name, value in labels.items()]}


def _image_missing(name: str) -> ImageMissing:
    why = f"image {name!r} is not on the engine; run `airlock images build` for Airlock's own images, or pull it"
    return ImageMissing(why, name)
