"""The isolation of this sandbox as reported by the kernel, never from the requested configuration."""

from __future__ import annotations

import os

from sandbox.daemon.kernel import is_gvisor
from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.serving.mounts import read_mounts
from sandbox.daemon.supervisor.control_wire import CALL_GID_BASE
from sandbox.daemon.supervisor.landlock import landlock_version
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_INTERFACES_LIMIT = 64


async def read_posture(spawner: Spawner, cgroup: Cgroup, daemon_socket: str) -> wire.Posture:
    """Return the posture, without executing a program: the image may have none."""
    output, tool_output = os.pipe()
    try:
        await spawner.probe(tool_output, os.fsencode(daemon_socket))
    finally:
        os.close(tool_output)
        with open(output, "rb") as file:  # noqa: ASYNC230 - the writer has ended
            tool = parse_status(file.read())
    with open(f"/proc/{os.getppid()}/status", "rb") as file:  # noqa: ASYNC230 - in memory
        init = parse_status(file.read())
    kernel = os.uname()
    tool_uid, tool_groups = int(tool["Uid"].split()[1]), _tool_groups(tool)
    mounts = read_mounts(tool_uid, tool_groups)
    return wire.Posture(
        tool_uid=tool_uid,
        daemon_uid=os.getuid(),
        capabilities_bounding=int(init["CapBnd"], 16),
        tool_capabilities_effective=int(tool["CapEff"], 16),
        no_new_privileges=tool.get("NoNewPrivs") == "1",
        # Of both, because tool code also has the daemon's filter.
        seccomp_mode=min(int(status.get("Seccomp", "0")) for status in (init, tool)),
        root_read_only=_root_read_only(mounts),
        memory_limit_bytes=cgroup.memory_limit_bytes(),
        pids_limit=cgroup.pids_limit(),
        network_interfaces=_network_interfaces(),
        kernel=kernel.release,
        memory_swap_limit_bytes=cgroup.memory_swap_limit_bytes(),
        cpu_limit_millis=cgroup.cpu_limit_millis(),
        namespaces=_namespaces(),
        mounts=mounts,
        runtime="gvisor" if is_gvisor(kernel.release, kernel.version) else "linux",
        tool_groups=tool_groups,
        tool_oom_score_adj_min=int(tool.get("OomScoreAdjMin", "0")),
        daemon_oom_score_adj=_own_oom_score_adj(),
        socket_closed_to_tools=tool.get("SocketClosed") == "1",
        tool_socket_families=[int(family) for family in tool.get("SocketFamilies", "").split()],
        socket_programs_refused=tool.get("SocketPrograms") == "0",
        seccomp_filters_refused=tool.get("SeccompFilters") == "0",
        landlock_version=max(0, landlock_version()),
    )


def parse_status(text: bytes) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _root_read_only(mounts: list[wire.Mount]) -> bool:
    """Return whether everything mounted at / is read-only; gVisor's statvfs() has no flags."""
    roots = [mount.read_only for mount in mounts if mount.path == "/"]
    return bool(roots) and all(roots)


def _tool_groups(tool: dict[str, str]) -> list[int]:
    ids = {int(group) for name in ("Gid", "Groups") for group in tool.get(name, "").split()}
    return sorted(group for group in ids if group < CALL_GID_BASE)


def _namespaces() -> list[wire.Namespace]:
    """Return this process' namespaces, which are pid 1's: it lacks the capability to leave them."""
    found = []
    for kind in _NAMESPACES:
        try:
            _, _, inode = os.readlink(f"/proc/self/ns/{kind}").rstrip("]").partition("[")
        except OSError:
            continue  # not supported by this kernel
        if inode.isdecimal():
            found.append(wire.Namespace(kind=kind, inode=int(inode)))
    return found


def _own_oom_score_adj() -> int:
    try:
        with open("/proc/self/oom_score_adj") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _network_interfaces() -> list[str]:
    try:
        with open("/proc/net/dev") as file:
            lines = file.readlines()[2:]
    except OSError:
        return []
    names = (line.partition(":")[0].strip() for line in lines)
    return [name for name in names if name != "lo"][:_INTERFACES_LIMIT]
