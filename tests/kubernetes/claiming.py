"""A gateway's process that is killed in the midst of a claim: `python -m tests.kubernetes.claiming ...`.

Its arguments: KUBECONFIG NAMESPACE KEYS_NAMESPACE STEP. The thread is called as the step is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sandbox.client.tls_address import TlsAddress
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.pooled_sandbox import PoolKind
from tests.conformance.kubernetes_engines import NoWalls
from tests.integration.sandbox.live_engine import run, spec

# After which request to the API, or what else, in the order of a creation for the pool and of the claim.
ANSWERS = {
    "volume": ("create", "persistentvolumeclaims"),
    "pod": ("create", "pods"),
    "noted": ("create", "leases"),
    "owned": ("patch", "pods"),
    "volume-owned": ("patch", "persistentvolumeclaims"),
    "running": ("update", "leases"),
}
STEPS = ("volume", "pod", "made", "noted", "owned", "volume-owned", "relayed", "running", "used")
WHOLE = ("running", "used")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(engine: KubernetesEngine, step: str) -> None:
    """Claim a pooled sandbox for the thread that is called as the step is, and die there."""
    ask: Any = engine._parts.requests._ask
    claim: Any = TlsAddress.claim

    async def asked(verb: str, resource: Any, *more: Any, **named: Any) -> Any:
        answer = await ask(verb, resource, *more, **named)
        if ANSWERS.get(step) == (verb, resource.plural):
            die()
        return answer

    async def claimed(*arguments: Any) -> None:
        await claim(*arguments)
        die()

    vars(engine._parts.requests)["_ask"] = asked
    if step == "relayed":
        TlsAddress.claim = claimed  # type: ignore[assignment, method-assign]
    pooled = await engine.pool.make_pooled(PoolKind.of(spec(step)))
    if step == "made":
        die()
    sandbox = await engine.pool.claim(pooled, spec(step))
    assert sandbox is not None
    if step == "used":
        await run(sandbox.shell, "echo kept > file; sync")
    die()


if __name__ == "__main__":
    kubeconfig, namespace, keys_namespace, step = sys.argv[1:]
    site = Site("test", namespace, keys_namespace, mode="pods")
    engine = KubernetesEngine(site, KubernetesRequests(Path(kubeconfig)), inspection=NoWalls())
    asyncio.run(main(engine, step))
