"""The same engine as another machine's and as this one's: `python -m tests.bench.remote_engine`.

    execute true      a command in a sandbox that runs
    a sandbox         made, to its first command; the relay's container is made beside it
    from the pool     claimed, to its first command: over TLS the sandbox is given a name of its own first
    started again     a stopped one, to its first command

Both are on this machine, so a relay takes the processor from what it is compared with; the network between two machines
comes on top. AIRLOCK_TEST_RUNTIME_IMAGE names another runtime image.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.sandbox import Sandbox, SandboxSpec
from tests.integration.sandbox import live_engine
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, run
from tests.integration.sandbox.made_images import busybox, image
from tests.remote_engine import RemoteEngine, remote_engine

_SAMPLES = 12
_CALLS = 40


class Measured:
    """One way to the engine, and the seconds that each sample took."""

    def __init__(self, engine: DockerEngine, image_name: str) -> None:
        self.engine = engine
        self.taken: dict[str, list[float]] = {}
        self._image = image_name
        self._threads = itertools.count()

    async def once(self) -> None:
        """Take one sample of everything."""
        spec = self._spec()
        sandbox = await self._timed("a sandbox", lambda: self.engine.create(spec))
        for _ in range(_CALLS):
            await self._timed("execute true", lambda: _same(sandbox))
        await self.engine.stop_idle(sandbox.id)
        await self._timed("started again", lambda: self.engine.create(spec))
        await self.engine.remove(sandbox.id)
        spec = self._spec()
        pooled = await self.engine.pool.make_pooled(PoolKind.of(spec))
        claimed = await self._timed("from the pool", lambda: self._claimed(pooled, spec))
        await self.engine.remove(claimed.id)

    async def _claimed(self, pooled: object, spec: SandboxSpec) -> Sandbox:
        claimed = await self.engine.pool.claim(pooled, spec)  # type: ignore[arg-type] - what it has made
        assert claimed is not None
        return claimed

    async def _timed(self, what: str, make: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        began_s = time.perf_counter()
        sandbox = await make()
        await run(sandbox.shell, "true")
        self.taken.setdefault(what, []).append(time.perf_counter() - began_s)
        return sandbox

    def _spec(self) -> SandboxSpec:
        return dataclasses.replace(live_engine.spec(f"t{next(self._threads)}"), image=self._image)


async def _same(sandbox: Sandbox) -> Sandbox:
    return sandbox


async def _measured(machine: RemoteEngine, image_name: str, directory: Path) -> Table:
    ways = {"local": DockerRequests(machine.url), "remote": machine.requests(directory / "authority.pem")}
    both = {
        name: Measured(
            DockerEngine(
                instance=instance_id(),
                channel_root=directory / name,
                runtime_image=RUNTIME_IMAGE,
                requests=requests,
            ),
            image_name,
        )
        for name, requests in ways.items()
    }
    for _ in range(_SAMPLES):
        for measured in both.values():
            await measured.once()
    for measured in both.values():
        await measured.engine.remove_workspaces()
        await measured.engine.close()
    table = Table("p50, ms", *both, "more", box=None, header_style="bold")
    for what in ("execute true", "a sandbox", "from the pool", "started again"):
        local, remote = (median(measured.taken[what]) * 1000 for measured in both.values())
        table.add_row(what, f"{local:.1f}", f"{remote:.1f}", f"{remote - local:+.1f}")
    return table


def main() -> None:
    """Measure and print."""
    with (
        image(busybox()) as name,
        remote_engine(name, RUNTIME_IMAGE) as machine,
        tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory,
    ):
        Console().print(asyncio.run(_measured(machine, name, Path(directory))))


if __name__ == "__main__":
    main()
