"""What makes a sandbox too weak."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.engine import SandboxLimits, SandboxSpec
from sandbox.posture import weaknesses
from sandbox.v1 import channel_pb2 as pb

LIMITS = SandboxLimits(memory_bytes=1000, cpus=0.5, pids=20)


def spec(runtime: str = "runc") -> SandboxSpec:
    return SandboxSpec("tenant", "thread", "image", runtime=runtime, limits=LIMITS)


def posture(**changes: Any) -> pb.Posture:
    strong: dict[str, Any] = {
        "tool_uid": 10001,
        "daemon_uid": 10002,
        "capabilities_bounding": 0xE1,
        "no_new_privileges": True,
        "seccomp_mode": 2,
        "root_read_only": True,
        "memory_limit_bytes": 1000,
        "memory_swap_limit_bytes": 1000,
        "pids_limit": 20,
        "cpu_limit_millis": 500,
    }
    return pb.Posture(**{**strong, **changes})


def test_a_sandbox_as_strong_as_its_spec_has_no_weakness() -> None:
    assert weaknesses(posture(), spec()) == []


def test_limits_tighter_than_asked_are_no_weakness() -> None:
    tighter = posture(memory_limit_bytes=1, memory_swap_limit_bytes=1, pids_limit=1, cpu_limit_millis=1)
    assert weaknesses(tighter, spec()) == []


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"tool_uid": 0}, "as root"),
        ({"daemon_uid": 0}, "daemon runs as root"),
        ({"daemon_uid": 10001}, "daemon's user"),
        ({"tool_capabilities_effective": 1 << 21}, "0x200000"),
        ({"capabilities_bounding": 0xE1 | 1 << 21}, "0x200000"),
        ({"no_new_privileges": False}, "no_new_privileges"),
        ({"root_read_only": False}, "root file system"),
        ({"network_interfaces": ["eth0"]}, "eth0"),
        ({"seccomp_mode": 0}, "seccomp"),
        ({"seccomp_mode": 1}, "seccomp"),
        ({"memory_limit_bytes": 1001}, "memory limit is 1001"),
        ({"memory_limit_bytes": 0}, "memory limit is missing"),
        ({"memory_swap_limit_bytes": 2000}, "memory and swap limit is 2000"),
        ({"pids_limit": 0}, "process limit is missing"),
        ({"pids_limit": 21}, "process limit is 21"),
        ({"cpu_limit_millis": 501}, "CPU limit is 501"),
    ],
)
def test_each_weakness_is_said_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    (found,) = weaknesses(posture(**changes), spec())
    assert said in found
    assert found.endswith(".")


def test_an_empty_posture_is_weak_in_every_way() -> None:
    assert len(weaknesses(pb.Posture(), spec())) >= 9


def test_under_gvisor_the_kernel_s_limits_are_not_looked_at_but_users_and_capabilities_are() -> None:
    silent = posture(seccomp_mode=0, memory_limit_bytes=0, memory_swap_limit_bytes=0, pids_limit=0, cpu_limit_millis=0)
    assert weaknesses(silent, spec("runsc")) == []
    assert weaknesses(posture(tool_uid=0), spec("runsc"))


def test_where_the_host_cannot_limit_swap_memory_alone_is_checked() -> None:
    unknown = posture(memory_swap_limit_bytes=0)
    assert weaknesses(unknown, spec(), swap_limited=False) == []
    assert weaknesses(unknown, spec())
