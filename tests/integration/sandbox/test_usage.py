"""What a sandbox uses, by a real engine and by its own daemon: two ways to the same counts."""

from __future__ import annotations

import dataclasses

import pytest

from sandbox.client.cgroup_usage import read_usage
from sandbox.engines.docker.docker_engine import DockerEngine
from tests.integration.sandbox.live_engine import LIMITS, run, spec

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_engine_and_the_daemon_report_the_same(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("counted", "tenant-counted"))
    await run(sandbox.shell, "head -c 20000000 /dev/zero > /tmp/held")
    (live,) = await engine.listed("tenant-counted")
    before, reported, after = await read_usage(sandbox), await engine.usage(live), await read_usage(sandbox)
    assert before is not None
    assert reported is not None
    assert after is not None
    assert None not in (before.cpu_s, reported.cpu_s, after.cpu_s)
    assert (before.cpu_s or 0) <= (reported.cpu_s or 0) <= (after.cpu_s or 0)
    for found in (before, reported):
        assert (found.memory_limit_bytes, found.pids_limit) == (LIMITS.memory_bytes, LIMITS.pids)
        assert 20_000_000 < (found.memory_bytes or 0) < LIMITS.memory_bytes
        assert 0 < (found.pids or 0) < LIMITS.pids
    # Of gVisor the host counts threads of its kernel.
    other = await engine.usage(dataclasses.replace(live, runtime="runsc"))
    assert other is not None
    assert (other.memory_limit_bytes, other.pids, other.pids_limit) == (LIMITS.memory_bytes, None, None)
    await engine.remove(sandbox.id)
    assert await engine.usage(live) is None
