"""A gateway's process that is killed in the midst of a claim: `python -m tests.integration.sandbox.claiming ...`.

Its arguments: INSTANCE CHANNELS STEP. The thread is called as the step is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sandbox.engines.docker import docker_pool
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.pooled_sandbox import PoolKind
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, run, spec

STEPS = ("making", "noted", "taken", "unsure", "checked", "used")


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(instance: str, channels: Path, step: str) -> None:
    """Claim a pooled sandbox for the thread that is called as the step is, and die there."""
    engine = DockerEngine(instance=instance, channel_root=channels, runtime_image=RUNTIME_IMAGE)
    if step == "making":
        vars(docker_pool)["settled"] = _die
    pooled = await engine.pool.make_pooled(PoolKind.of(spec(step)))
    take: Any = engine._parts.claims.take

    async def taken(*arguments: Any) -> bool:
        await take(*arguments)
        _die()
        raise AssertionError

    if step == "noted":
        vars(engine._parts.claims)["take"] = _die
    if step == "taken":
        vars(engine._parts.claims)["take"] = taken
    if step == "unsure":
        vars(docker_pool)["refuse_other"] = _die
    if step == "checked":
        vars(pooled.lock)["retire"] = _die
    sandbox = await engine.pool.claim(pooled, spec(step))
    assert sandbox is not None
    if step == "used":
        await run(sandbox.shell, "echo kept > file; sync")
    _die()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
