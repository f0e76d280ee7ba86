"""256 MiB into a sandbox and out of it, beside `docker cp` in one run: `python -m tests.bench.daemon_files`.

    upload, download      RemoteFS over the daemon's socket         beside `docker cp` of the same file, same volume
    the same              a client through the whole gateway        beside the same

Both ends of `docker cp` are files of this host; RemoteFS takes from and gives to this process' memory, piece by piece,
as the gateway does. An upload makes a new file; "replace" is one over a file that is there, where ext4 begins to write
the new bytes to the disk before it lets go of the old ones. The samples of all rows are taken in turn.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.client import Client
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import NotFound
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec
from tests.bench.side_by_side import PeakMemory, Sample, seconds
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served

_MIB = 1024**2
_SIZE_BYTES = 256 * _MIB
_PIECE_BYTES = _MIB
_SAMPLES = 7
_WARMUP = 1
_REMOTE = "/workspace/bench.bin"
_COPIED = "/workspace/copied.bin"  # belongs to root, for docker cp keeps the owner


async def _pieces(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


async def _docker_cp(source: str, target: str) -> None:
    process = await asyncio.create_subprocess_exec("docker", "cp", "--quiet", source, target)
    if await process.wait():
        raise RuntimeError(f"docker cp {source} {target} failed")


@asynccontextmanager
async def _sandbox(directory: Path) -> AsyncIterator[tuple[Sandbox, str]]:
    instance = f"bench-{secrets.token_hex(4)}"
    engine = DockerEngine(instance=instance, channel_root=directory, runtime_image="airlock-runtime")
    try:
        limits = SandboxLimits(cpus=2.0, workspace_bytes=2048 * _MIB)
        sandbox = await engine.create(SandboxSpec("bench", "files", "airlock-sandbox", limits=limits))
        (container,) = containers_of(instance)
        yield sandbox, container
    finally:
        for sandbox_id in await engine.owned():
            await engine.remove(sandbox_id)
        await engine.remove_workspaces()
        await engine.close()


Row = tuple[Callable[[], Awaitable[None]], Sample]
"""What to do before a sample, and the sample."""


async def _nothing() -> None:
    pass


def _rows(sandbox: Sandbox, container: str, airlock: Client, source: Path) -> dict[str, Row]:
    files = sandbox.files
    data = source.read_bytes()
    back = source.with_name("back.bin")

    def without(path: str) -> Callable[[], Awaitable[None]]:
        async def remove() -> None:
            with suppress(NotFound):
                await files.remove(path)

        return remove

    async def upload() -> None:
        entry = await files.write(_REMOTE, _pieces(source))
        assert entry.size_bytes == _SIZE_BYTES

    async def download() -> None:
        got_bytes = 0
        async for piece in files.read(_REMOTE):
            got_bytes += len(piece)
        assert got_bytes == _SIZE_BYTES

    async def client_upload() -> None:
        assert await airlock.write_file("bench", _REMOTE, data) == _SIZE_BYTES

    async def client_download() -> None:
        got_bytes = 0
        async for piece in airlock.stream_file("bench", _REMOTE):
            got_bytes += len(piece)
        assert got_bytes == _SIZE_BYTES

    async def client_without() -> None:
        await airlock.call_tool("execute", {"command": f"rm -f {_REMOTE}"}, thread="bench")

    async def copied_back() -> None:
        back.unlink(missing_ok=True)

    return {
        "docker cp in": (without(_COPIED), lambda: _docker_cp(str(source), f"{container}:{_COPIED}")),
        "RemoteFS upload": (without(_REMOTE), upload),
        "RemoteFS replace": (_nothing, upload),
        "client upload": (client_without, client_upload),
        "docker cp out": (copied_back, lambda: _docker_cp(f"{container}:{_COPIED}", str(back))),
        "RemoteFS download": (_nothing, download),
        "client download": (_nothing, client_download),
    }


async def _medians_s(rows: Mapping[str, Row]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for n in range(_WARMUP + _SAMPLES):
        for name, (prepare, sample) in rows.items():
            await prepare()
            value = await seconds(sample)
            if n >= _WARMUP:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


async def _growth_bytes(rows: Mapping[str, Row]) -> int:
    growth = []
    for name in ("RemoteFS upload", "RemoteFS download"):
        with PeakMemory() as memory:
            await rows[name][1]()
        growth.append(memory.growth_bytes)
    return max(growth)


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine and 1.5 GiB of disk."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as text:
        directory = Path(text)
        source = directory / "source.bin"
        with source.open("wb") as file:
            for _ in range(_SIZE_BYTES // _MIB):
                file.write(os.urandom(_MIB))
        channels = directory / "channels"
        channels.mkdir()
        home = make_home(directory / "home")
        with served(home) as gateway:
            async with _sandbox(channels) as (sandbox, container), Client(gateway.address, home.key) as airlock:
                rows = _rows(sandbox, container, airlock, source)
                growth_bytes = await _growth_bytes(rows)
                p50_s = await _medians_s(rows)
    return [_table(p50_s, growth_bytes)]


def _table(p50_s: dict[str, float], growth_bytes: int) -> Table:
    title = f"256 MiB; this process grew by {growth_bytes / _MIB:.1f} MiB at most over RemoteFS"
    table = Table("what", "MiB/s", "beside", "times as fast", "goal", title=title, box=None, header_style="bold")
    for what, peer, goal in (
        ("RemoteFS upload", "docker cp in", ">= 2"),
        ("RemoteFS download", "docker cp out", ">= 2"),
        ("RemoteFS replace", "docker cp in", ""),
        ("client upload", "docker cp in", ""),
        ("client download", "docker cp out", ""),
    ):
        table.add_row(
            what,
            f"{256 / p50_s[what]:.0f}",
            f"{peer} ({256 / p50_s[peer]:.0f})",
            f"{p50_s[peer] / p50_s[what]:.2f}",
            goal,
        )
    return table


async def _main() -> None:
    console = Console(width=110)
    for table in await tables():
        console.print(table)


if __name__ == "__main__":
    asyncio.run(_main())
