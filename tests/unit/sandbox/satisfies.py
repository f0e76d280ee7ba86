"""Read by mypy, in deploy/check: each assignment holds only if the class satisfies the protocol.

agent and sandbox do not import each other, so only a type checker can say that they fit.
"""

from agent.filesystem import FileSystem, Shell
from sandbox.client.channel_sandbox import ChannelSandbox, Uses
from sandbox.client.presence import Presence
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_shell import RemoteShell
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.image_pulls import PullingCreation
from sandbox.engines.engine import Creator, Engine
from sandbox.engines.fair_creation import FairCreation
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.local.local_fs import LocalFS
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_sandbox import PoolSource
from sandbox.engines.sandbox_pool import SandboxPool
from sandbox.keeper.leases import ImageGate, Leases
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import Sandbox
from sandbox.thread_lock import ThreadLock


def local(files: LocalFS) -> FileSystem:
    return files


def remote(files: RemoteFS) -> FileSystem:
    return files


def shell(commands: RemoteShell) -> Shell:
    return commands


def sandbox(made: ChannelSandbox) -> Sandbox:
    return made


def engine(docker: DockerEngine) -> Engine:
    return docker


def kubernetes(engine: KubernetesEngine) -> Engine:
    return engine


def memory(engine: MemoryEngine) -> Engine:
    return engine


def creators(fair: FairCreation, pulling: PullingCreation, pool: SandboxPool) -> tuple[Creator, Creator, Creator]:
    return fair, pulling, pool


def keeper(leases: SandboxKeeper) -> Leases:
    return leases


def gate(leases: ImageGate) -> Leases:
    return leases


def docker_pool(docker: DockerEngine) -> PoolSource:
    return docker.pool


def kubernetes_pool(kubernetes: KubernetesEngine) -> PoolSource:
    return kubernetes.pool


def offered(made: Sandbox) -> tuple[FileSystem, Shell]:
    return made.files, made.shell


def uses(lock: ThreadLock, presence: Presence) -> tuple[Uses, Uses]:
    return lock, presence
