"""What an engine counts of a sandbox: the words of both versions of control groups, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import ListedSandbox
from sandbox.usage import Usage, usage_of

MIB = 1024 * 1024


def _stats(**memory: Any) -> dict[str, Any]:
    return {
        "cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}, "online_cpus": 2},
        "memory_stats": {"usage": 30 * MIB, "limit": 64 * MIB, **memory},
        "pids_stats": {"current": 5, "limit": 512},
    }


def test_a_reading_of_cgroup_v1_has_a_peak() -> None:
    found = usage_of(_stats(max_usage=50 * MIB, stats={"total_inactive_file": 10 * MIB, "inactive_file": 1}))
    assert found == Usage(1.5, 20 * MIB, 64 * MIB, 50 * MIB, 5, 512)


def test_a_reading_of_cgroup_v2_has_none() -> None:
    found = usage_of(_stats(stats={"inactive_file": 4 * MIB}))
    assert found == Usage(1.5, 26 * MIB, 64 * MIB, None, 5, 512)


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"cpu_stats": None, "memory_stats": [], "pids_stats": "many"},
        # What an engine says of a container without a control group of its own, or one that has ended.
        {"cpu_stats": {"cpu_usage": {"total_usage": 0}}, "memory_stats": {}, "pids_stats": {}},
        {"memory_stats": {"usage": -1, "limit": 2**63}, "pids_stats": {"current": True, "limit": 1.5}},
    ],
)
def test_what_is_not_said_or_cannot_be_is_unknown_and_not_zero(stats: dict[str, Any]) -> None:
    assert usage_of(stats) == Usage()


async def test_nothing_is_reported_of_a_gvisor_without_a_control_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DockerEngine(instance="i1", channel_root=tmp_path)
    hosts_own = {**_stats(max_usage=50 * MIB), "pids_stats": {}}
    for stats, reported in (
        (hosts_own, Usage()),
        (_stats(stats={"inactive_file": 4 * MIB}), Usage(1.5, 26 * MIB, 64 * MIB, None)),
        (None, None),
    ):

        async def answer(*_: object, stats: dict[str, Any] | None = stats) -> dict[str, Any] | None:
            return stats

        monkeypatch.setattr(engine._parts.requests, "ask", answer)
        assert await engine.usage(ListedSandbox("s1", "t", "image", "runsc", 0.0)) == reported
    await engine.close()
