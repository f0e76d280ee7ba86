"""Read by mypy, in test_protocols.py: each assignment holds only if the class satisfies the protocol."""

from agent.filesystem import FileSystem, Shell
from sandbox.channel_sandbox import ChannelSandbox
from sandbox.docker.docker_engine import DockerEngine
from sandbox.engine import Engine
from sandbox.engine_around import EngineAround
from sandbox.keeper import Keeper
from sandbox.keeper_around import KeeperAround
from sandbox.local_fs import LocalFS
from sandbox.memory.memory_engine import MemoryEngine
from sandbox.remote_fs import RemoteFS
from sandbox.remote_shell import RemoteShell
from sandbox.sandbox import Sandbox
from sandbox.sandbox_keeper import SandboxKeeper
from sandbox.spares import Spares


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


def around(engine: EngineAround) -> Engine:
    return engine


def keeper(lends: SandboxKeeper) -> Keeper:
    return lends


def keeper_around(keeper: KeeperAround) -> Keeper:
    return keeper


def docker_spares(docker: DockerEngine) -> Spares:
    return docker


def memory_spares(engine: MemoryEngine) -> Spares:
    return engine


def offered(made: Sandbox) -> tuple[FileSystem, Shell]:
    return made.files, made.shell
