"""`airlock uninstall`: remove everything that one gateway created, and nothing of other gateways on the engine.

On a cluster that is what all gateways of its database created, wherever they ran.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from gateway.cli.command import Cli, Yes
from gateway.cli.terminal import EXIT_BAD_NEWS, SlowWork, fail, out
from gateway.errors import Misconfigured
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from gateway.config.config import Config
    from sandbox.engines.docker.docker_requests import DockerRequests
    from sandbox.engines.kubernetes.remains import Remaining, Remains


@dataclass
class Found:
    """What a gateway has created. `state` is None if there is no state directory, or if it must stay."""

    instance: str
    containers: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    objects: list[Remaining] = field(default_factory=list)
    state: Path | None = None
    kept: list[str] = field(default_factory=list)

    @property
    def in_engine(self) -> int:
        return len(self.containers) + len(self.volumes) + len(self.objects)


class Place(Protocol):
    """Where an engine has what a gateway created; `name` is for people."""

    name: str

    async def look(self, found: Found) -> None: ...
    async def remove(self, found: Found) -> list[str]:
        """Remove what was found; return what is left, with reasons."""


async def uninstall(
    cli: Cli,
    *,
    config: Annotated[Path, typer.Option(help="Configuration file of the gateway.")] = Path("airlock.yaml"),
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep the state directory: runs, keys, audit, snapshots.")
    ] = False,
    yes: Yes = False,
) -> None:
    """List the containers, volumes, cluster objects and state directory of a gateway, ask, and remove them.

    Stop the gateway first; on a cluster, all gateways of its database. The volumes contain the files of all threads and
    are removed even with --keep-state. The configuration, policies, a PostgreSQL database and shared images stay.
    """
    if cli.as_json and not yes:
        fail("--json cannot ask for confirmation: add --yes")
    from gateway.config.config import Config

    try:
        loaded = Config.load(config)
        with _stopped(loaded):
            await _uninstall(cli, loaded, config, keep_state=keep_state, yes=yes)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_BAD_NEWS)


async def _uninstall(cli: Cli, config: Config, path: Path, *, keep_state: bool, yes: bool) -> None:
    clustered = config.sandbox.engine == "kubernetes"
    found = Found(await _shared_instance(config) if clustered else _instance(config))
    async with _place(config, found.instance) as place:
        if found.instance and place is not None:
            await place.look(found)
        _look_at_state(config, path, found, keep=keep_state)
        if not cli.as_json:
            _print(found)
        where = "the engine" if place is None else place.name
        remove_found = found.in_engine > 0 and (
            yes or typer.confirm(f"Remove these from {where}? The volumes contain the files of all threads.", err=True)
        )
        # Containers and volumes go first: without the state directory, their owner would be unknown.
        remove_state = found.state is not None and (remove_found or not found.in_engine)
        if remove_state and not yes:
            remove_state = typer.confirm(f"Remove {found.state} with its runs, keys, audit and snapshots?", err=True)
        left = []
        if remove_found and place is not None:
            if clustered:
                await _shared_instance(config)  # one may have started while this asked
            with SlowWork("removing"):
                left = await place.remove(found)
    if left:
        raise Misconfigured(f"the state directory stays because some removals failed: {'; '.join(left)}; try again")
    if remove_state and found.state is not None:
        shutil.rmtree(found.state)
    removed = (found.in_engine if remove_found else 0) + remove_state
    document = {name: getattr(found, name) for name in ("instance", "containers", "volumes")}
    document |= {"objects": [str(one) for one in found.objects]}
    document |= {"state_dir": None if found.state is None else str(found.state), "kept": found.kept}
    cli.show(document, f"removed {removed} of {found.in_engine + (found.state is not None)}")


@contextlib.contextmanager
def _stopped(config: Config) -> Iterator[None]:
    """Lock the state directory as a gateway does. Raises Misconfigured if a gateway uses it or its database."""
    from gateway.serving.directory_locks import locked_state, refuse_in_use

    state = config.path(config.state_dir)
    if not state.exists():
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_state(state))
        except Misconfigured as error:
            raise Misconfigured(f"the gateway is running: stop it first ({error})") from error
        if instance := _instance(config):
            refuse_in_use(config.resolved_channel_dir(), instance)
        yield


def _instance(config: Config) -> str:
    """Return the id that labels the gateway's containers and volumes; "" if the state directory has none."""
    path = config.path(config.state_dir) / "instance"
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


async def _shared_instance(config: Config) -> str:
    """Return the id that labels what all gateways of a database have on a cluster; "" if none has started.

    Raises Misconfigured while one of them serves: its state directory is elsewhere.
    """
    from gateway.cli.database import local_database
    from gateway.serving.directory_locks import INSTANCE
    from gateway.storage.connecting import file_of
    from gateway.storage.database import value_of
    from gateway.storage.engine_store import EngineStore

    file = file_of(config.resolved_database_url())
    if file is not None and not file.exists():
        return _instance(config)
    async with local_database(config, as_it_is=True) as database:
        if served := await EngineStore(database).served_at():
            raise Misconfigured(
                f"a gateway of the same database is running at {', '.join(served)}: stop all of them first. One that "
                "was killed counts until its lease has expired (recovery.lease_s)"
            )
        return await value_of(database, INSTANCE) or _instance(config)


@contextlib.asynccontextmanager
async def _place(config: Config, instance: str) -> AsyncIterator[Place | None]:
    """Have what the configuration's engine has; None for one that keeps nothing."""
    if config.sandbox.engine == "docker":
        from gateway.sandboxes.docker_access import docker_requests

        with contextlib.closing(docker_requests(config)) as engine:
            yield _Docker(engine, config.sandbox.runtime_image)
    elif config.sandbox.engine == "kubernetes":
        from gateway.composition.kubernetes import requests_of, site_of
        from sandbox.engines.kubernetes.remains import Remains

        requests = requests_of(config)
        try:
            yield _Cluster(Remains(requests, site_of(config, instance)))
        finally:
            await requests.close()
    else:
        yield None


@dataclass
class _Cluster:
    """Satisfies Place."""

    remains: Remains
    name: str = "the cluster"

    async def look(self, found: Found) -> None:
        found.objects = [*await self.remains.found()]

    async def remove(self, found: Found) -> list[str]:
        return [*await self.remains.removed(found.objects)]


@dataclass
class _Docker:
    """Satisfies Place."""

    engine: DockerRequests
    runtime_image: str
    name: str = "Docker"

    async def look(self, found: Found) -> None:
        from sandbox.engines.docker.container_config import INSTANCE_LABEL
        from sandbox.engines.docker.docker_requests import labelled_volumes, list_containers

        labels = {INSTANCE_LABEL: found.instance}
        containers = await self.engine.ask(list_containers, labels)
        found.containers = sorted(container["Names"][0].lstrip("/") for container in containers)
        found.volumes = sorted(await self.engine.ask(labelled_volumes, labels))

    async def remove(self, found: Found) -> list[str]:
        return await _remove(self.engine, found, self.runtime_image)


def _look_at_state(config: Config, path: Path, found: Found, *, keep: bool) -> None:
    from gateway.storage.connecting import file_of, shown

    state = config.path(config.state_dir).resolve()
    if state.exists() and not keep:
        inside = [one for one in _operators_own(config, path) if one.resolve().is_relative_to(state)]
        if inside:
            found.kept.append(f"{state}, because it contains {', '.join(str(one) for one in inside)}")
        else:
            found.state = state
    elif state.exists():
        found.kept.append(str(state))
    url = config.resolved_database_url()
    database = file_of(url)
    if database is None:
        found.kept.append(f"database {shown(url)}")
    for outside in (database, config.resolved_snapshots_dir(), config.resolved_channel_dir()):
        if outside is not None and outside.exists() and not outside.resolve().is_relative_to(state):
            found.kept.append(str(outside))
    if config.snapshots.bucket is not None:
        found.kept.append(f"snapshots in {config.snapshots.bucket}")
    found.kept.append(f"{path} and its policies")


def _operators_own(config: Config, path: Path) -> Iterator[Path]:
    """Yield files that an operator wrote or keeps as evidence, which must not be removed."""
    yield path
    named = [config.operator_policy, *(tenant.policy for tenant in config.tenants.values())]
    if config.tls is not None:
        named += [config.tls.certificate, config.tls.key]
    if config.audit.anchor is not None:
        named += [config.audit.anchor.file, config.audit.anchor.key_file]
    yield from (config.path(one) for one in named if isinstance(one, Path))


async def _remove(engine: DockerRequests, found: Found, runtime_image: str) -> list[str]:
    """Remove the containers and volumes; return those that are left, with reasons."""
    from sandbox.engines.docker.docker_requests import remove_container
    from sandbox.engines.docker.workspace_claims import empty_deep_volume

    left = []
    for name in found.containers:
        try:
            await engine.ask(remove_container, name)
        except SandboxError as error:
            left.append(f"container {name}: {error}")
    for name in found.volumes:
        empty = partial(
            empty_deep_volume, engine, name, image=runtime_image, instance=found.instance, owner=("uninstall", name)
        )
        try:
            try:
                await engine.remove_volume(name, tenant="")
            except SandboxError:  # a tree too deep for the engine
                await engine.remove_volume(name, tenant="", before=empty)
        except SandboxError as error:
            left.append(f"volume {name}: {error}")
    return left


def _print(found: Found) -> None:
    if not found.instance:
        out.print(
            "the state directory has no instance id, because the gateway never started or the directory was replaced; "
            "its engine was not searched"
        )
    for kind in ("containers", "volumes"):
        for name in getattr(found, kind):
            out.print(f"{kind[:-1]} {name}")
    for one in found.objects:
        out.print(str(one))
    if found.state is not None:
        out.print(f"state directory {found.state}")
    for kept in found.kept:
        out.print(f"keeping {kept}", style="dim")
