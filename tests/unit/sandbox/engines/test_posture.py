"""What makes a sandbox too weak."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, cast

import pytest

from sandbox.engines.containment import CAPABILITIES
from sandbox.engines.docker.boot import Blueprint
from sandbox.engines.docker.container_config import Site
from sandbox.engines.posture import HostKernel, kubernetes, landlock_of, own_namespaces, weaknesses
from sandbox.errors import PostureTooWeak
from sandbox.sandbox import SandboxLimits, SandboxSpec
from sandbox.v1 import channel_pb2 as pb

LIMITS = SandboxLimits(memory_bytes=1000, cpus=0.5, pids=20)


def spec(runtime: str = "runc") -> SandboxSpec:
    return SandboxSpec("tenant", "thread", "image", runtime=runtime, limits=LIMITS)


def mount(path: str, kind: str = "ext4", flags: str = "") -> pb.Mount:
    """Return a mount; flags are of ro, nosuid, nodev, noexec and writable."""
    given = set(flags.split())
    return pb.Mount(
        path=path,
        type=kind,
        read_only="ro" in given,
        no_suid="nosuid" in given,
        no_dev="nodev" in given,
        no_exec="noexec" in given,
        tool_writable="writable" in given,
    )


INERT = "nosuid nodev noexec"
MOUNTS = {
    made.path: made
    for made in (
        mount("/", "overlay", "ro"),
        mount("/proc", "proc", INERT),
        mount("/dev", "tmpfs", "nosuid"),
        mount("/dev/pts", "devpts", "nosuid noexec"),
        mount("/sys", "sysfs", f"ro {INERT}"),
        mount("/sys/fs/cgroup", "tmpfs", INERT),
        mount("/sys/fs/cgroup/pids", "cgroup", f"ro {INERT}"),
        mount("/dev/mqueue", "mqueue", f"{INERT} writable"),
        mount("/dev/shm", "tmpfs", f"{INERT} writable"),
        mount("/tmp", "tmpfs", "nosuid nodev writable"),
        mount("/workspace", "ext4", "writable"),
        mount("/opt/airlock", "ext4", "ro"),
        mount("/run/airlock", "ext4"),
        mount("/etc/hosts", "ext4", "ro"),
        mount("/proc/sys", "proc", f"ro {INERT}"),
        mount("/proc/keys", "tmpfs", "nosuid"),
    )
}
# What a gVisor of 2022 shows of the same container.
GVISOR_MOUNTS = (
    mount("/", "9p", "ro"),
    mount("/dev", "tmpfs"),
    mount("/sys", "sysfs", "ro noexec"),
    mount("/tmp", "tmpfs", "writable"),
    mount("/proc", "proc"),
    mount("/dev/shm", "tmpfs", "writable"),
    mount("/workspace", "9p", "writable"),
    mount("/run/airlock", "9p"),
    mount("/opt/airlock", "9p", "ro"),
)
NAMESPACES = {"cgroup": 4026531835, "ipc": 11, "mnt": 12, "net": 13, "pid": 14, "user": 4026531837, "uts": 15}


def mounts(*changed: pb.Mount, without: str = "") -> list[pb.Mount]:
    """Return the usual mounts but for those that are changed, added or left out."""
    return [kept for kept in ({**MOUNTS, **{other.path: other for other in changed}}).values() if kept.path != without]


def namespaces(**changes: int) -> list[pb.Namespace]:
    """Return the usual namespaces; an inode of 0 leaves one out."""
    return [pb.Namespace(kind=kind, inode=inode) for kind, inode in {**NAMESPACES, **changes}.items() if inode]


def posture(**changes: Any) -> pb.Posture:
    strong: dict[str, Any] = {
        "tool_uid": 10001,
        "daemon_uid": 10002,
        "capabilities_bounding": 0xE1,
        "no_new_privileges": True,
        "socket_closed_to_tools": True,
        "tool_socket_families": [1, 2, 10],
        "socket_programs_refused": True,
        "seccomp_filters_refused": True,
        "seccomp_mode": 2,
        "root_read_only": True,
        "memory_limit_bytes": 1000,
        "memory_swap_limit_bytes": 1000,
        "pids_limit": 20,
        "cpu_limit_millis": 500,
        "runtime": "linux",
        "namespaces": namespaces(),
        "mounts": mounts(),
        "tool_groups": [10001],
        "tool_oom_score_adj_min": 800,
        "daemon_oom_score_adj": 0,
    }
    return pb.Posture(**{**strong, **changes})


def test_a_sandbox_as_strong_as_its_spec_has_no_weakness() -> None:
    assert weaknesses(posture(), spec()) == []


def test_seccomp_filters_that_the_policy_allows_are_no_weakness() -> None:
    asked = dataclasses.replace(spec(), limits=dataclasses.replace(LIMITS, seccomp_filters=True))
    assert weaknesses(posture(seccomp_filters_refused=False), asked) == []


def test_extended_attributes_are_a_weakness_where_nothing_limits_the_files_of_a_tmpfs() -> None:
    assert weaknesses(posture(extended_attributes_refused=False), spec()) == []
    promise = kubernetes(pids_limited=True)
    assert weaknesses(posture(extended_attributes_refused=True), spec(), promise=promise) == []
    (said,) = weaknesses(posture(extended_attributes_refused=False), spec(), promise=promise)
    assert "can set extended attributes" in said


def test_limits_tighter_than_asked_are_no_weakness() -> None:
    tighter = posture(memory_limit_bytes=1, memory_swap_limit_bytes=1, pids_limit=1, cpu_limit_millis=1)
    assert weaknesses(tighter, spec()) == []


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"tool_uid": 0, "tool_groups": [0]}, "as root"),
        ({"daemon_uid": 0}, "daemon runs as root"),
        ({"daemon_uid": 10001}, "daemon's user"),
        ({"tool_capabilities_effective": 1 << 21}, "0x200000"),
        ({"capabilities_bounding": 0xE1 | 1 << 21}, "0x200000"),
        ({"no_new_privileges": False}, "no_new_privileges"),
        ({"socket_closed_to_tools": False}, "reach the daemon's socket"),
        ({"tool_socket_families": [1, 2, 10, 16, 40]}, "AF_INET6: 16, 40."),
        ({"socket_programs_refused": False}, "BPF programs on sockets"),
        ({"seccomp_filters_refused": False}, "its policy does not allow"),
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
        ({"tool_groups": [10001, 0]}, "groups other than its own: 0"),
        ({"tool_groups": [5, 10001]}, "groups other than its own: 5"),
        ({"tool_groups": []}, "unknown"),
        ({"tool_oom_score_adj_min": 0}, "its score to 0, the daemon's is 0"),
        ({"tool_oom_score_adj_min": -500, "daemon_oom_score_adj": -499}, "-500"),
        ({"runtime": "gvisor"}, "kernel is gvisor; runtime runc has linux"),
        ({"runtime": ""}, "kernel is unknown"),
        ({"namespaces": namespaces(pid=4026531836)}, "shares the pid namespace"),
        ({"namespaces": namespaces(net=77)}, "shares the net namespace"),
        ({"namespaces": namespaces(mnt=0)}, "mnt namespace is unknown"),
        ({"mounts": mounts(mount("/host"))}, "not asked for: /host."),
        ({"mounts": mounts(mount("/var/run/docker.sock", "tmpfs"))}, "not asked for: /var/run/docker.sock."),
        ({"mounts": mounts(mount("/x\x1b[2J" + "y" * 5000))}, "not asked for: /x?[2Jyyy"),
        ({"mounts": mounts(mount("/opt/airlock/lib"))}, "not asked for: /opt/airlock/lib."),
        ({"mounts": mounts(mount("/data", "tmpfs", "nosuid nodev"))}, "/data is writable"),
        ({"mounts": mounts(mount("/data", "ext4", "ro nosuid nodev"))}, "/data is ext4 where tmpfs"),
        ({"mounts": mounts(mount("/opt/airlock"))}, "/opt/airlock is writable"),
        ({"mounts": mounts(without="/opt/airlock")}, "Nothing is mounted at /opt/airlock."),
        ({"mounts": mounts(without="/workspace")}, "Nothing is mounted at /workspace."),
        ({"mounts": mounts(without="/proc/sys")}, "Nothing is mounted at /proc/sys."),
        ({"mounts": mounts(without="/proc/keys")}, "Nothing of /proc and /sys is hidden."),
        ({"mounts": mounts(mount("/proc/sys", "proc", INERT))}, "/proc/sys is writable"),
        ({"mounts": mounts(mount("/sys", "sysfs", INERT))}, "/sys is writable"),
        ({"mounts": mounts(mount("/sys/fs/cgroup/pids", "cgroup"))}, "/sys/fs/cgroup/pids is writable"),
        ({"mounts": mounts(mount("/proc/keys", "tmpfs", "nosuid writable"))}, "can write to /proc/keys"),
        ({"mounts": mounts(mount("/dev", "tmpfs", "nosuid writable"))}, "can write to /dev"),
        ({"mounts": mounts(mount("/dev/zero", "devtmpfs", "writable"))}, "can write to /dev/zero"),
        ({"mounts": mounts(mount("/dev/zero", "ext4"))}, "/dev/zero is ext4 where devtmpfs"),
        ({"mounts": mounts(mount("/dev/kvm", "devtmpfs"))}, "not asked for: /dev/kvm."),
        ({"mounts": mounts(mount("/run/airlock", "ext4", "writable"))}, "can write to /run/airlock"),
        ({"mounts": mounts(mount("/tmp", "tmpfs", "nosuid writable"))}, "/tmp is mounted without"),
        ({"mounts": mounts(mount("/dev/shm", "tmpfs", "nodev writable"))}, "/dev/shm is mounted without"),
        ({"mounts": mounts(mount("/tmp", "ext4", "nosuid nodev writable"))}, "/tmp is ext4 where tmpfs"),
        ({"mounts": [*MOUNTS.values()] * 40}, "512 mounts or more"),
    ],
)
def test_each_weakness_is_said_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    host = HostKernel(gateway_namespaces={"net": 77, "ipc": 78})
    (found,) = weaknesses(posture(**changes), spec(), host=host, volumes=["/data"])
    assert said in found
    assert found.endswith(".")


def test_the_devices_that_a_rootless_engine_mounts_are_no_strangers() -> None:
    devices = [mount(f"/dev/{name}", "devtmpfs", "nosuid") for name in ("null", "zero", "full", "tty", "urandom")]
    rootless = mounts(*devices, mount("/proc/keys", "devtmpfs", "nosuid"))
    assert weaknesses(posture(mounts=rootless), spec()) == []


def test_an_empty_posture_is_weak_in_every_way() -> None:
    assert len(weaknesses(pb.Posture(), spec())) >= 18


def test_what_lies_over_the_volumes_of_an_image_is_no_stranger() -> None:
    there = posture(mounts=mounts(mount("/data", "tmpfs", f"ro {INERT}")))
    assert weaknesses(there, spec(), volumes=["/data"]) == []
    assert weaknesses(there, spec())


def test_a_posture_of_a_thousand_weaknesses_is_reported_in_few_words() -> None:
    hostile = posture(mounts=[mount("/tmp", "x" * 10_000, "writable")] * 511)
    assert len(" ".join(weaknesses(hostile, spec()))) < 20_000


def test_the_gateway_reads_its_own_namespaces() -> None:
    own = own_namespaces()
    assert sorted(own) == ["ipc", "mnt", "net", "pid", "uts"]
    shared = posture(namespaces=namespaces(**own))
    assert len(weaknesses(shared, spec(), host=HostKernel(gateway_namespaces=own))) == len(own)


def test_every_capability_that_a_container_is_given_is_allowed_and_has_its_number() -> None:
    names = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}
    assert set(CAPABILITIES) == set(names)
    assert weaknesses(posture(capabilities_bounding=sum(1 << number for number in names.values())), spec()) == []


def test_a_virtual_machine_has_a_network_namespace_of_its_own_that_is_its_first() -> None:
    first = posture(namespaces=namespaces(net=0xEFFFFFF9))
    assert weaknesses(first, spec("kata")) == []
    assert weaknesses(first, spec())
    assert weaknesses(posture(namespaces=namespaces(net=0xEFFFFFF9, pid=0xEFFFFFFC)), spec("kata"))


def test_under_gvisor_the_kernel_s_limits_are_not_looked_at_but_users_mounts_and_capabilities_are() -> None:
    silent = posture(
        seccomp_mode=0,
        memory_limit_bytes=0,
        memory_swap_limit_bytes=0,
        pids_limit=0,
        cpu_limit_millis=0,
        runtime="gvisor",
        namespaces=[pb.Namespace(kind="pid", inode=299)],
        mounts=GVISOR_MOUNTS,
        tool_oom_score_adj_min=0,
    )
    assert weaknesses(silent, spec("runsc")) == []
    for change in (
        {"tool_uid": 0, "tool_groups": [0]},
        {"runtime": "linux"},
        {"capabilities_bounding": 1 << 21},
        {"mounts": [*GVISOR_MOUNTS, mount("/host", "9p")]},
        {"mounts": [*GVISOR_MOUNTS[:-1], mount("/opt/airlock", "9p")]},
        {"mounts": GVISOR_MOUNTS[:-1]},
    ):
        weaker = pb.Posture()
        weaker.CopyFrom(silent)
        for name in change:
            weaker.ClearField(name)  # type: ignore[arg-type]
        weaker.MergeFrom(pb.Posture(**change))  # type: ignore[arg-type]
        assert weaknesses(weaker, spec("runsc")), change


def test_where_the_host_cannot_limit_swap_memory_alone_is_checked() -> None:
    unknown = posture(memory_swap_limit_bytes=0)
    assert weaknesses(unknown, spec(), host=HostKernel(swap_limited=False)) == []
    assert weaknesses(unknown, spec())


def test_where_the_kernel_has_no_landlock_the_order_of_being_killed_for_memory_is_not_asked_for() -> None:
    unordered = posture(tool_oom_score_adj_min=0)
    assert weaknesses(unordered, spec(), host=HostKernel(landlock=False)) == []
    assert weaknesses(unordered, spec())


def test_every_weakness_is_in_the_log_and_a_posture_for_those_who_want_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    blueprint = Blueprint(spec(), "id", (), cast(Site, None), HostKernel())
    blueprint.refuse_weak("s1", posture())
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert 'path: "/workspace"' in record.getMessage()
    with pytest.raises(PostureTooWeak, match=r"seccomp.*process limit") as refused:
        blueprint.refuse_weak("s1", posture(seccomp_mode=0, pids_limit=0))
    assert "removed" in str(refused.value)
    assert any(r.levelno == logging.WARNING and "seccomp" in r.getMessage() for r in caplog.records)


def test_the_release_of_another_machine_s_kernel_says_what_it_can_do() -> None:
    releases = {"6.18.44": 3, "6.2": 3, "6.1.0-13-amd64": 2, "5.19.0": 2, "5.15.0-generic": 1, "5.4": 0, "": 0, "x": 0}
    assert {release: landlock_of(release) for release in releases} == releases
