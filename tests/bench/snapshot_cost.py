"""100 MiB in 5,000 files, kept and put back, beside `docker cp` in one run: `python -m tests.bench.snapshot_cost`.

    first save     DockerEngine.save_workspace into a directory that is empty     beside `docker cp` out
    save again     the same files, all of which are kept already                          beside the same
    restore        DockerEngine.replace_workspace of them                                 beside `docker cp` in

`docker cp` neither hashes nor compresses nor waits for the disk; a snapshot does all three. Half of the bytes are
random, half are text. The samples of all rows are taken in turn.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.snapshots.places import OnDisk
from gateway.snapshots.snapshot_files import Limits
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec
from tests.bench.side_by_side import PeakMemory, Sample, seconds
from tests.docker_state import containers_of

_MIB = 1024**2
_FILES, _FILE_BYTES = 5_000, 20_972
_SAMPLES = 5
_WARMUP = 1
_LIMITS = Limits(size_bytes=1024 * _MIB, stored_bytes=1024 * _MIB)
_FILL = f"""\
python3 - <<'END'
import os
for n in range({_FILES}):
    os.makedirs(f"d{{n // 100}}", exist_ok=True)
    with open(f"d{{n // 100}}/f{{n}}", "wb") as file:
        text = f"line of file {{n}}\\n".encode() * 2000
        file.write(os.urandom({_FILE_BYTES}) if n % 2 else text[:{_FILE_BYTES}])
END
"""
Row = tuple[Sample, Sample]
"""What to do before a sample, and the sample."""


@asynccontextmanager
async def _engine(directory: Path) -> AsyncIterator[DockerEngine]:
    instance = f"bench-{secrets.token_hex(4)}"
    engine = DockerEngine(instance=instance, channel_root=directory, runtime_image="airlock-runtime")
    try:
        yield engine
    finally:
        for sandbox_id in await engine.owned():
            await engine.remove(sandbox_id)
        await engine.remove_workspaces()
        await engine.close()


def _spec(thread: str) -> SandboxSpec:
    limits = SandboxLimits(cpus=2.0, workspace_bytes=1024 * _MIB)
    return SandboxSpec("bench", thread, "airlock-sandbox", limits=limits)


async def _filled(engine: DockerEngine, thread: str) -> Sandbox:
    sandbox = await engine.create(_spec(thread))
    done = await sandbox.shell.execute(
        _FILL, timeout_s=120, call_id="fill", limit_chars=1000, head_chars=100, tail_chars=100
    )
    assert done.exit_code == 0, done
    return sandbox


async def _docker_cp(source: str, target: str) -> None:
    process = await asyncio.create_subprocess_exec("docker", "cp", "--quiet", source, target)
    if await process.wait():
        raise RuntimeError(f"docker cp {source} {target} failed")


def _rows(engine: DockerEngine, containers: tuple[str, str], directory: Path) -> dict[str, Row]:
    kept, fresh, out = directory / "kept", directory / "fresh", directory / "out"
    whole = OnDisk(directory).of("kept").of("first")
    source, copied = containers

    def without(path: Path) -> Sample:
        return lambda: asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def nothing() -> None:
        pass

    async def save(into: Path, id_: str) -> None:
        keeping = OnDisk(into.parent).of(into.name)
        await engine.save_workspace(_spec("from"), lambda contents: keeping.of(id_).write(contents, _LIMITS))

    async def restore() -> None:
        await asyncio.to_thread(whole.check_whole)
        await engine.replace_workspace(_spec("to"), whole.read)

    return {
        "docker cp out": (without(out), lambda: _docker_cp(f"{source}:/workspace", str(out))),
        "first save": (without(fresh), lambda: save(fresh, "only")),
        "save again": (nothing, lambda: save(kept, "again")),
        "docker cp in": (nothing, lambda: _docker_cp(f"{out}/.", f"{copied}:/workspace")),
        "restore": (nothing, restore),
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


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine and 1 GiB of disk."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as text:
        directory = Path(text)
        async with _engine(directory / "channels") as engine:
            await _filled(engine, "from")
            (source,) = containers_of(engine.instance)
            await engine.create(_spec("copied"))
            (copied,) = set(containers_of(engine.instance)) - {source}
            rows = _rows(engine, (source, copied), directory)
            kept = OnDisk(directory).of("kept")
            await engine.save_workspace(_spec("from"), lambda contents: kept.of("first").write(contents, _LIMITS))
            growth = await _growth_bytes(rows)
            p50_s = await _medians_s(rows)
    return [_table(p50_s, growth)]


async def _growth_bytes(rows: Mapping[str, Row]) -> int:
    growth = []
    for name in ("first save", "restore"):
        prepare, sample = rows[name]
        await prepare()
        with PeakMemory() as memory:
            await sample()
        growth.append(memory.growth_bytes)
    return max(growth)


def _table(p50_s: Mapping[str, float], growth_bytes: int) -> Table:
    title = f"100 MiB in {_FILES:,} files; this process grew by {growth_bytes / _MIB:.1f} MiB at most"
    table = Table("what", "seconds", "beside", "times as long", title=title, box=None, header_style="bold")
    for what, peer in (
        ("first save", "docker cp out"),
        ("save again", "docker cp out"),
        ("restore", "docker cp in"),
    ):
        table.add_row(what, f"{p50_s[what]:.2f}", f"{peer} ({p50_s[peer]:.2f})", f"{p50_s[what] / p50_s[peer]:.2f}")
    return table


async def _main() -> None:
    console = Console(width=110)
    for table in await tables():
        console.print(table)


if __name__ == "__main__":
    asyncio.run(_main())
