"""How small and how quick the daemon is: `python -m tests.bench.daemon_size`, as root, with a Docker engine.

    memory    of the daemon in a sandbox as the gateway makes it: idle, beside another sandbox, after 1,000 calls
    start     from the exec of the daemon to its first answer, beside `python3 -c pass` of the same bundle

USS is Private_Clean + Private_Dirty of /proc/PID/smaps_rollup. Clean pages are of the bundle's files, and private only
while no other sandbox runs. PSS divides shared pages among all who map them; its anonymous part is what one more
sandbox costs this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
from rich.console import Console
from rich.table import Table

from sandbox.engines.containment import RUNTIME_DIRECTORY
from sandbox.engines.docker.container_config import COMMAND_LABEL, KIND_LABEL
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.bench.side_by_side import medians_s
from tests.docker_state import containers_of

_RUNTIME_IMAGE = "airlock-runtime"
_CALLS = 1000
_START_SAMPLES = 15
_START_TIMEOUT_S = 20
_KIB_PER_MIB = 1024
_PROCESSES = ("init", "tool spawner", "waiting", "server")
_USERS = ("--tool-uid", "600000000", "--tool-gid", "600000000", "--daemon-uid", "600000001")


@dataclass(frozen=True)
class Memory:
    """One process, in KiB."""

    clean: int
    dirty: int
    pss: int
    pss_anonymous: int

    @property
    def uss(self) -> int:
        """What would be free again if only this process ended."""
        return self.clean + self.dirty


def memory_of(pid: int) -> Memory:
    """Return the memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    fields = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return Memory(fields["Private_Clean"], fields["Private_Dirty"], fields["Pss"], fields["Pss_Anon"])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _user(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))


def daemon_memory(container: str) -> dict[str, Memory]:
    """Return the memory of a container's processes; while no tool runs, all of them are the daemon's."""
    init = int(docker.from_env().api.inspect_container(container)["State"]["Pid"])
    # The tool spawner stays root as init does; the server became another user.
    names = {child: "tool spawner" if _user(child) == 0 else "server" for child in _children(init)}
    names |= {waiting: "waiting" for child in [*names] if _user(child) == 0 for waiting in _children(child)}
    return {"init": memory_of(init), **{name: memory_of(pid) for pid, name in names.items()}}


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[tuple[DockerEngine, str]]:
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        instance = f"bench-{os.urandom(4).hex()}"
        engine = DockerEngine(instance=instance, channel_root=Path(directory))
        try:
            yield engine, instance
        finally:
            for sandbox_id in await engine.owned():
                await engine.remove(sandbox_id)
            await engine.remove_workspaces()
            await engine.close()


async def _calls(sandbox: Sandbox) -> None:
    for number in range(_CALLS // 4):
        path = f"/workspace/{number % 8}"
        await sandbox.files.write(path, b"line\n" * 100)
        await sandbox.files.read_lines(path, limit=10)
        await sandbox.files.ls("/workspace")
        await sandbox.shell.execute(
            "true", timeout_s=30, call_id="bench", limit_chars=1000, head_chars=100, tail_chars=100
        )


async def _memory_table() -> Table:
    table = Table(
        "MiB",
        "init",
        "tool spawner",
        "waiting",
        "server",
        "USS",
        "goal",
        "clean",
        "PSS",
        "anonymous PSS",
        box=None,
        header_style="bold",
    )

    def row(name: str, container: str, goal: str = "") -> None:
        daemon = daemon_memory(container)
        each = [daemon[process].uss if process in daemon else 0 for process in _PROCESSES]
        sums = [
            sum(getattr(one, field) for one in daemon.values()) for field in ("uss", "clean", "pss", "pss_anonymous")
        ]
        figures = [f"{kib / _KIB_PER_MIB:.2f}" for kib in (*each, *sums)]
        table.add_row(name, *figures[:5], goal, *figures[5:])

    async with _engine() as (engine, instance):
        sandbox = await engine.create(SandboxSpec("bench", "first", "airlock-sandbox"))
        (container,) = containers_of(instance)
        row("idle", container, "<= 12")
        second = await engine.create(SandboxSpec("bench", "second", "airlock-sandbox"))
        row("idle, beside another", container)
        await engine.remove(second.id)
        await _calls(sandbox)
        row(f"after {_CALLS:,} calls", container)
    return table


@contextlib.contextmanager
def _bundle() -> Iterator[list[str]]:
    """Copy the bundle out of its image; give the command that starts the daemon from the copy."""
    client = docker.from_env()
    command = json.loads(client.images.get(_RUNTIME_IMAGE).labels[COMMAND_LABEL])
    directory = Path(tempfile.mkdtemp(prefix="airlock-bench-"))
    try:
        directory.chmod(0o755)  # the server reads its modules as another user
        container = client.containers.create(_RUNTIME_IMAGE, ["/none"], labels={KIND_LABEL: "devtest"})
        try:
            stream, _ = container.get_archive(RUNTIME_DIRECTORY)
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                archive.extractall(directory, filter="tar")
        finally:
            container.remove(v=True)
        yield [word.replace(RUNTIME_DIRECTORY, str(directory / "airlock")) for word in command]
    finally:
        shutil.rmtree(directory)


def _hello(path: str) -> None:
    """Connect as soon as the port is open, and ask who it is."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    request = pb.Request(hello=pb.HelloRequest(protocol_version=1)).SerializeToString()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_START_TIMEOUT_S)
        while connection.connect_ex(path):
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon did not come up")
            time.sleep(0.0005)
        connection.sendall(len(request).to_bytes(4, "big") + request)
        with connection.makefile("rb") as file:
            reply = pb.Reply.FromString(file.read(int.from_bytes(file.read(4), "big")))
    assert reply.WhichOneof("reply") == "hello", reply


async def _start_table() -> Table:
    with _bundle() as command, tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        Path(directory).chmod(0o755)
        (channel := Path(directory) / "channel").mkdir()
        channel.chmod(0o770)
        (workspace := Path(directory) / "workspace").mkdir()
        path = str(channel / "daemon.sock")
        daemon_command = [*command, "--socket", path, "--workspace", str(workspace), *_USERS]
        pass_command = [*command[: command.index("-m")], "-c", "pass"]
        took_s: list[float] = []

        async def daemon() -> None:
            started = time.perf_counter()
            with subprocess.Popen(daemon_command, env={}, stdin=subprocess.DEVNULL) as process:
                try:
                    _hello(path)
                    took_s.append(time.perf_counter() - started)
                finally:
                    process.send_signal(signal.SIGTERM)  # init leaves, and the server after it
            os.unlink(path)

        async def bare() -> None:
            subprocess.run(pass_command, env={}, check=True)

        names = ("start to first answer", "python3 -c pass")
        p50_s = await medians_s({names[0]: (daemon, 1), names[1]: (bare, 1)}, samples=_START_SAMPLES, warmup=2)
    # The end of the daemon is not its start.
    start_s = sorted(took_s[2:])[_START_SAMPLES // 2]
    table = Table("what", "p50 ms", "goal", "beside", "ratio", box=None, header_style="bold")
    peer = f"{names[1]} ({p50_s[names[1]] * 1000:.0f})"
    table.add_row(names[0], f"{start_s * 1000:.0f}", "< 250", peer, f"{start_s / p50_s[names[1]]:.1f}")
    return table


async def tables() -> list[Table]:
    """Measure and return the tables; needs root and a Docker engine with the images."""
    return [await _memory_table(), await _start_table()]


async def _main() -> None:
    console = Console(width=110)
    for table in await tables():
        console.print(table)
        console.print()


if __name__ == "__main__":
    asyncio.run(_main())
