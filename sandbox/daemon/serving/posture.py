"""The isolation of this sandbox as reported by the kernel, never from the requested configuration."""

import os
import re
import stat

from sandbox.daemon.limits.kernel import Cgroup, is_gvisor, read_if_there
from sandbox.daemon.supervisor.control_wire import CALL_GID_BASE
from sandbox.daemon.supervisor.landlock import landlock_version
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire


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
    tool_uid = int(tool["Uid"].split()[1])
    ids = {int(group) for name in ("Gid", "Groups") for group in tool.get(name, "").split()}
    tool_groups = sorted(group for group in ids if group < CALL_GID_BASE)
    mounts = read_mounts(tool_uid, tool_groups)
    roots = [mount.read_only for mount in mounts if mount.path == "/"]
    return wire.Posture(
        tool_uid=tool_uid,
        daemon_uid=os.getuid(),
        capabilities_bounding=int(init["CapBnd"], 16),
        tool_capabilities_effective=int(tool["CapEff"], 16),
        no_new_privileges=tool.get("NoNewPrivs") == "1",
        # Of both, because tool code also has the daemon's filter.
        seccomp_mode=min(int(status.get("Seccomp", "0")) for status in (init, tool)),
        root_read_only=bool(roots) and all(roots),  # gVisor's statvfs() has no flags
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
        daemon_oom_score_adj=int(read_if_there("/proc/self/oom_score_adj") or b"0"),
        socket_closed_to_tools=tool.get("SocketClosed") == "1",
        tool_socket_families=[int(family) for family in tool.get("SocketFamilies", "").split()],
        socket_programs_refused=tool.get("SocketPrograms") == "0",
        seccomp_filters_refused=tool.get("SeccompFilters") == "0",
        landlock_version=max(0, landlock_version()),
        extended_attributes_refused=tool.get("ExtendedAttributes") == "0",
    )


def parse_status(text: bytes) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _namespaces() -> list[wire.Namespace]:
    """Return this process' namespaces, which are pid 1's: it lacks the capability to leave them."""
    found = []
    for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        try:
            _, _, inode = os.readlink(f"/proc/self/ns/{kind}").rstrip("]").partition("[")
        except OSError:
            continue  # not supported by this kernel
        if inode.isdecimal():
            found.append(wire.Namespace(kind=kind, inode=int(inode)))
    return found


def _network_interfaces() -> list[str]:
    lines = read_if_there("/proc/net/dev").decode().splitlines()[2:]
    names = (line.partition(":")[0].strip() for line in lines)
    return [name for name in names if name != "lo"][:64]


MOUNTS_LIMIT = 512
# null, zero, full, random, urandom and tty: writes to them do not leave the sandbox.
_HARMLESS_DEVICES = frozenset(os.makedev(*number) for number in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0)))
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def read_mounts(tool_uid: int, tool_groups: list[int]) -> list[wire.Mount]:
    """Return the first 512 mounts, including hidden ones."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = parse_mounts(file.read())
    for mount in found:
        mount.tool_writable = not mount.read_only and _writable(mount.path, tool_uid, tool_groups)
    return found


def parse_mounts(text: bytes) -> list[wire.Mount]:
    """Parse mountinfo, which does not say whether tool code may write."""
    found = []
    for line in text.splitlines()[:MOUNTS_LIMIT]:
        mount, _, file_system = line.partition(b" - ")
        fields = mount.split(b" ")
        kind, _, options = file_system.partition(b" ")
        flags = set(fields[5].split(b","))
        path = _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), fields[4])
        found.append(
            wire.Mount(
                # Longer paths are cut, as no valid mount has one. All mounts together fit into a frame.
                path=path[:1024].decode("utf-8", "replace"),
                type=kind[:32].decode("utf-8", "replace"),
                read_only=b"ro" in flags or b"ro" in options.rpartition(b" ")[2].split(b","),
                no_suid=b"nosuid" in flags,
                no_dev=b"nodev" in flags,
                no_exec=b"noexec" in flags,
            )
        )
    return found


def _writable(path: str, uid: int, groups: list[int]) -> bool:
    """Return whether a user may write to the top of a mount, or can obtain that right."""
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return False  # tool code cannot reach it
    if stat.S_ISCHR(state.st_mode) and state.st_rdev in _HARMLESS_DEVICES:
        return False  # also files that /dev/null hides
    of_group = state.st_gid in groups and state.st_mode & stat.S_IWGRP
    return state.st_uid == uid or bool(of_group or state.st_mode & stat.S_IWOTH)
