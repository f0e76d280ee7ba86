"""How soon a thread has its Pod: `python -m tests.bench.kubernetes_acquire`, over the cluster for tests.

    warm      from a claim of a pooled Pod to the end of the first command
    cold      the same without a pool
    running   a command in a sandbox that runs

All in turns, in a process of its own. The API and the Pods are processes of this machine, in Python: what they take on
a real cluster is not known by this. It is the number of requests that carries over.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.sandbox import Sandbox, SandboxLimits, SandboxSpec
from tests.conformance.kubernetes_engines import IMAGE, ClusterSite, NoWalls, cluster_of_sandboxes

_LIMITS = SandboxLimits(memory_bytes=256 * 1024 * 1024, workspace_bytes=64 * 1024 * 1024, pids=64)
_TENANT = "bench"
_WARMUP, _SAMPLES = 3, 40


def _spec(thread: str) -> SandboxSpec:
    return SandboxSpec(_TENANT, thread, IMAGE, limits=_LIMITS)


async def _true(sandbox: Sandbox) -> None:
    await sandbox.shell.execute("true", timeout_s=20, call_id="c", limit_chars=100, head_chars=10, tail_chars=10)


class _Run:
    """The samples, and the requests to the API that a row makes each time."""

    def __init__(self, engine: KubernetesEngine) -> None:
        self.engine = engine
        self.took_s: dict[str, list[float]] = {}
        self.requests: dict[str, Counter[str]] = {}
        self._asked: Counter[str] = Counter()
        ask = engine._parts.requests._ask

        async def counted(verb: str, resource: Any, *more: Any, **named: Any) -> Any:
            self._asked[f"{verb} {resource.plural}"] += 1
            return await ask(verb, resource, *more, **named)

        vars(engine._parts.requests)["_ask"] = counted

    async def sample(self, row: str, number: int) -> None:
        pooled = await self.engine.pool.make_pooled(PoolKind.of(_spec(""))) if row == "warm" else None
        running = await self.engine.create(_spec("running")) if row == "running" else None
        await asyncio.sleep(0.3)  # what the cluster still does about it is not the sample's
        self._asked.clear()
        began_s = time.perf_counter()
        sandbox = running or await (
            self.engine.pool.claim(pooled, _spec(f"{row}-{number}"))
            if pooled
            else self.engine.create(_spec(f"{row}-{number}"))
        )
        assert sandbox is not None
        made = Counter(self._asked)
        await _true(sandbox)
        took_s = time.perf_counter() - began_s
        if number >= _WARMUP:
            self.took_s.setdefault(row, []).append(took_s)
            self.requests[row] = made
        if running is None:
            await self.engine.remove(sandbox.id)
            await self.engine.remove_workspace(_TENANT, sandbox.spec.thread)


async def _measured(kubeconfig: Path, namespace: str, keys_namespace: str) -> Table:
    site = Site("bench", namespace, keys_namespace)
    engine = KubernetesEngine(site, KubernetesRequests(kubeconfig), inspection=NoWalls())
    table = Table("row", "p50 (ms)", "p95 (ms)", "requests to the API", "which")
    try:
        run = _Run(engine)
        for number in range(_WARMUP + _SAMPLES):
            for row in ("warm", "cold", "running"):
                await run.sample(row, number)
        for row, took_s in run.took_s.items():
            p95_s = statistics.quantiles(took_s, n=20)[-1]
            made = run.requests[row]
            which = ", ".join(f"{what} {count}" for what, count in sorted(made.items()))
            table.add_row(
                row, f"{statistics.median(took_s) * 1e3:.0f}", f"{p95_s * 1e3:.0f}", str(sum(made.values())), which
            )
        await engine.remove_all_of(_TENANT)
    finally:
        await engine.close()
    return table


def main() -> None:
    if len(sys.argv) == 4:
        Console(width=150).print(asyncio.run(_measured(Path(sys.argv[1]), *sys.argv[2:])))
        return
    with tempfile.TemporaryDirectory() as directory, cluster_of_sandboxes() as cluster:
        place = ClusterSite(cluster, Path(directory))
        words = [str(place.kubeconfig), place.namespace, place.keys_namespace]
        subprocess.run([sys.executable, "-m", "tests.bench.kubernetes_acquire", *words], check=True)


if __name__ == "__main__":
    main()
