"""The engines that the conformance suite runs on: Docker, also on another machine, in memory, and Kubernetes; some of
them with all decorators of a gateway.

`kind`, `engine` and `engines` are fixtures. `engine` is one of a session; who needs engines of its own, one after
another as a gateway is started again, makes them on the test's `engines`.
"""

from __future__ import annotations

import asyncio
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from gateway.composition.sandboxes import decorated_creation
from gateway.policy.document import QuotasSection
from gateway.storage.quota_store import Hold, QuotaStore, Take
from gateway.tenancy.quotas import Quotas
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.image_pulls import ImagePulls
from sandbox.engines.engine import Creator, Engine, is_new
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.transition import Transition
from tests.conformance.kubernetes_engines import ClusterSite, cluster_of_sandboxes, lose
from tests.integration.sandbox.live_engine import IMAGE, RUNTIME_IMAGE, instance_id, kill
from tests.kubernetes.cluster import Cluster
from tests.relayed_process import INSTANCE, RelayedProcess
from tests.remote_engine import RemoteEngine, remote_engine
from tests.unit.gateway.telemetry.seen import watching


def only(*kinds: str, reason: str) -> pytest.MarkDecorator:
    """Have a test run on engines of some kinds, for a reason that says what the others do not promise."""
    assert reason
    everywhere = [*kinds, _REMOTE] if "docker" in kinds else kinds
    return pytest.mark.parametrize("kind", everywhere, indirect=True)


Innermost = DockerEngine | MemoryEngine | KubernetesEngine


class Engines(ABC):
    """Where the engines of one gateway stand: each that is made is another process of it."""

    def __init__(self, directory: Path, around: Callable[[Innermost], Engine] = lambda engine: engine) -> None:
        self.directory = directory
        self._around = around
        self._made: list[Engine] = []
        # What became of sandboxes, as its processes reported it.
        self.transitions: list[Transition] = []

    def engine(self) -> Engine:
        """Return the engine of a new process."""
        made = self._around(self._engine())
        self._made.append(made)
        return made

    async def clear(self) -> None:
        """Close every engine, remove all that they have made, and assert that nothing is left."""
        for made in reversed(self._made):  # one that was killed has nothing, and would wait for who has
            await made.close()
        last = self._engine()
        try:
            await last.reconcile()
            for sandbox_id in await last.owned():
                await last.remove(sandbox_id)
            await last.remove_workspaces()
        finally:
            await last.close()
        left = self.left()
        assert not left, left

    @abstractmethod
    def _engine(self) -> Innermost: ...
    @abstractmethod
    def left(self) -> list[str]:
        """Return what there is of sandboxes, workspaces and channels, seen from outside."""

    async def kill(self, engine: Engine) -> None:
        """Have an engine lose its locks and connections, as a process that is killed does."""
        raise NotImplementedError

    def kill_sandbox(self, sandbox_id: str) -> None:
        raise NotImplementedError


class DockerEngines(Engines):
    def __init__(self, directory: Path, around: Callable[[Innermost], Engine] = lambda engine: engine) -> None:
        super().__init__(directory, around)
        self.instance = instance_id()

    def _engine(self) -> DockerEngine:
        return DockerEngine(
            instance=self.instance,
            channel_root=self.directory,
            runtime_image=RUNTIME_IMAGE,
            on_transition=self.transitions.append,
        )

    def docker(self, *arguments: str) -> str:
        """Return what the docker command says."""
        return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout

    async def kill(self, engine: Engine) -> None:
        assert isinstance(engine, DockerEngine)
        kill(engine)

    def kill_sandbox(self, sandbox_id: str) -> None:
        name = f"airlock-{self.instance}-{sandbox_id}"
        self.docker("kill", name)

    def left(self) -> list[str]:
        mine = f"--filter=label=airlock.instance={self.instance}"
        there = [*self.docker("ps", "-aq", mine).split(), *self.docker("volume", "ls", "-q", mine).split()]
        return [*there, *(path.name for path in self.directory.iterdir())]


class RemoteEngines(DockerEngines):
    """Engines on another machine, whose processes see an empty directory in the place of this one's."""

    def __init__(self, directory: Path, machine: RemoteEngine) -> None:
        super().__init__(directory)
        self.machine = machine
        machine.hide(directory)

    def _engine(self) -> DockerEngine:
        return DockerEngine(
            instance=self.instance,
            channel_root=self.directory,
            runtime_image=RUNTIME_IMAGE,
            on_transition=self.transitions.append,
            requests=self.machine.requests(self.directory / "authority.pem"),
        )

    def docker(self, *arguments: str) -> str:
        return self.machine.docker(*arguments)

    def left(self) -> list[str]:
        return [one for one in super().left() if one != "authority.pem"]


class MemoryEngines(Engines):
    def _engine(self) -> MemoryEngine:
        return MemoryEngine(root=self.directory, on_transition=self.transitions.append, make_process=self._process)

    def _process(self, root: Path, directory: Path, lock: int) -> LocalProcess:
        return LocalProcess(root, directory, lock)

    def left(self) -> list[str]:
        places = [*self.directory.glob("workspaces/*/*"), *self.directory.glob("tmp/*")]
        return [str(path.relative_to(self.directory)) for path in places]


class TlsEngines(MemoryEngines):
    """Engines in memory whose daemons are reached over TCP and TLS alone."""

    def _process(self, root: Path, directory: Path, lock: int) -> LocalProcess:
        return RelayedProcess(ChannelAuthority.open(self.directory / "channels.pem", INSTANCE), root, directory, lock)


class KubernetesEngines(Engines):
    """Engines over one namespace of a cluster for tests."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        around: Callable[[Innermost], Engine] = lambda engine: engine,
        *,
        namespace_per_tenant: bool = False,
    ) -> None:
        super().__init__(directory, around)
        self.place = ClusterSite(cluster, directory, namespace_per_tenant=namespace_per_tenant)

    def _engine(self) -> KubernetesEngine:
        return self.place.engine(on_transition=self.transitions.append)

    async def kill(self, engine: Engine) -> None:
        assert isinstance(engine, KubernetesEngine)
        await lose(engine)

    def kill_sandbox(self, sandbox_id: str) -> None:
        self.place.kill(sandbox_id)

    def left(self) -> list[str]:
        return self.place.left()


def _around(engine: Innermost) -> Engine:
    """Return an engine with all decorators of a gateway; its new sandboxes are all from the pool."""
    creator, pool = decorated_creation(
        engine,
        pooled=lambda inner: _AlwaysReady(inner, engine),
        pulls=ImagePulls(DockerRequests("unix:///nonexistent/docker.sock")),
        telemetry=watching().telemetry,
        quotas=Quotas(cast(QuotaStore, _NeverFull())),
        quotas_of=_quotas_of,
    )
    return cast(Engine, _Decorated(engine, creator, pool))


class _Decorated:
    """An engine whose sandboxes a gateway's decorators create; all else is the engine's."""

    def __init__(self, engine: Innermost, creator: Creator, pool: SandboxPool | None) -> None:
        assert isinstance(pool, _AlwaysReady)
        self._engine = engine
        self._pool = pool
        self.create = creator.create

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def remove_workspaces(self) -> None:
        await self._pool.drain()
        await self._engine.remove_workspaces()

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        await self._pool.drain()
        await self._engine.close(keep_sandboxes=keep_sandboxes)


class _NeverFull:
    """Stands for the database's counters of quotas."""

    async def take(self, tenant: str, takes: Sequence[Take] = (), held: Sequence[Hold] = ()) -> Sequence[str]:
        """Refuse nothing; the names of what is used up would be returned."""
        assert tenant
        assert takes
        assert not held
        return ()


async def _quotas_of(tenant: str) -> QuotasSection:
    """Return quotas of sandboxes, so that they are counted."""
    assert tenant
    return QuotasSection(sandboxes_per_minute=1_000)


@dataclass(frozen=True)
class _Id:
    """A PooledSandbox by its id alone, as a sandbox in memory costs nothing before it is claimed."""

    id: str
    kind: PoolKind
    alive: bool = True

    async def ping(self) -> bool:
        return True


@dataclass(frozen=True)
class _Ids:
    """Satisfies PoolSource for a MemoryEngine."""

    engine: MemoryEngine

    async def make_pooled(self, kind: PoolKind) -> _Id:
        await self.engine.prepare()
        return _Id("pool-1", kind)

    async def claim(self, pooled: _Id, spec: SandboxSpec) -> Sandbox | None:
        has_files = await self.engine.save_workspace(spec, lambda _: True)
        return None if has_files else await self.engine.create(spec)

    async def discard(self, pooled: _Id) -> None: ...


class _AlwaysReady(SandboxPool):
    """A pool whose pooled sandboxes are made right before they are asked for."""

    def __init__(self, inner: Creator, engine: Innermost) -> None:
        super().__init__(inner, engine, _Ids(engine) if isinstance(engine, MemoryEngine) else engine.pool, limit=1)
        self._engine = engine
        self._turn = asyncio.Lock()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if not is_new(self._engine, spec):
            return await super().create(spec)
        async with self._turn:
            kind = PoolKind.of(spec)
            self.keep(kind, 1)
            await self.tend()
            try:
                return await super().create(spec)
            finally:
                self.forget(kind)
                await self.tend()


_REMOTE = "docker-remote"
_ENGINES: dict[str, Callable[[Path], Engines]] = {
    "docker": DockerEngines,
    "memory": MemoryEngines,
    "memory-tls": TlsEngines,
    "docker-around": lambda directory: DockerEngines(directory, _around),
    "memory-around": lambda directory: MemoryEngines(directory, _around),
}


_ON_CLUSTERS: dict[str, Callable[[Cluster, Path], Engines]] = {
    "kubernetes": KubernetesEngines,
    "kubernetes-tenants": partial(KubernetesEngines, namespace_per_tenant=True),
    "kubernetes-agent-sandbox": KubernetesEngines,
    "kubernetes-around": partial(KubernetesEngines, around=_around),
}
ON_CLUSTERS = tuple(kind for kind in _ON_CLUSTERS if kind != "kubernetes-around")


@pytest.fixture(scope="session", params=[*_ENGINES, _REMOTE, *_ON_CLUSTERS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def machine() -> Iterator[RemoteEngine]:
    with remote_engine(IMAGE, RUNTIME_IMAGE) as made:
        yield made


@pytest.fixture(scope="session")
def standing(kind: str, request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Engines]]:
    """What makes engines of a kind: on Kubernetes all of them are over one cluster."""
    if kind in _ON_CLUSTERS:
        with cluster_of_sandboxes(agent_sandbox=kind.endswith("-agent-sandbox")) as cluster:
            yield partial(_ON_CLUSTERS[kind], cluster)
    elif kind == _REMOTE:
        yield partial(RemoteEngines, machine=request.getfixturevalue("machine"))
    else:
        yield _ENGINES[kind]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(
    standing: Callable[[Path], Engines], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    engines = standing(tmp_path_factory.mktemp("engine"))
    yield engines.engine()
    await engines.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(standing: Callable[[Path], Engines], tmp_path: Path) -> AsyncIterator[Engines]:
    made = standing(tmp_path)
    yield made
    await made.clear()
