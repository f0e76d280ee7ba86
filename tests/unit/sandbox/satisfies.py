"""Read by mypy, in test_protocols.py: each assignment holds only if the class satisfies the protocol."""

from agent.filesystem import FileSystem, Shell
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_shell import RemoteShell
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.engine import Engine
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.engines.local.local_fs import LocalFS
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.pooled_sandbox import PoolSource
from sandbox.keeper.keeper import Keeper
from sandbox.keeper.keeper_decorator import KeeperDecorator
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import Sandbox


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


def memory(engine: MemoryEngine) -> Engine:
    return engine


def around(engine: EngineDecorator) -> Engine:
    return engine


def keeper(lends: SandboxKeeper) -> Keeper:
    return lends


def keeper_around(keeper: KeeperDecorator) -> Keeper:
    return keeper


def docker_pool(docker: DockerEngine) -> PoolSource:
    return docker


def memory_pool(engine: MemoryEngine) -> PoolSource:
    return engine


def offered(made: Sandbox) -> tuple[FileSystem, Shell]:
    return made.files, made.shell
