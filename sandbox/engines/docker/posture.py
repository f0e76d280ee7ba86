"""What holds a sandbox, compared with what its spec asks. The kernel's word, read by the daemon, decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from sandbox.engines.docker.container_config import CAPABILITIES
from sandbox.engines.docker.host_kernel import HostKernel
from sandbox.engines.docker.mount_rules import mount_weaknesses
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb

# The numbers of <linux/capability.h> for what container_config.py may ask for.
_CAPABILITY_NUMBERS = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_RESOURCE": 24}
_ALLOWED_CAPABILITIES = sum(1 << _CAPABILITY_NUMBERS[name] for name in CAPABILITIES)
_SECCOMP_FILTER = 2
_ALLOWED_FAMILIES = frozenset({1, 2, 10})  # AF_UNIX, AF_INET, AF_INET6
# The kinds that must be the sandbox's own, with the inodes that the host's first ones have on every Linux: a gateway in
# a container does not see them. <linux/proc_ns.h>; older kernels number the last two as they come.
_FIRST_NAMESPACES = {"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "pid": 0xEFFFFFFC, "net": 0xEFFFFFF9, "mnt": 0xEFFFFFF8}


def weaknesses(
    posture: pb.Posture,
    spec: SandboxSpec,
    *,
    host: HostKernel | None = None,
    gateway_namespaces: Mapping[str, int] | None = None,
    volumes: Collection[str] = (),
) -> list[str]:
    """Return one sentence for each way in which the sandbox is weaker than asked; none means it may be used.

    `host` is what its kernel can do at all, everything when not given: what it cannot is not asked for.
    `gateway_namespaces` are kind -> inode as own_namespaces() has them, `volumes` the paths the image declares.
    """
    host = host or HostKernel()
    found = [*_weak_identities(posture), *_open_calls(posture, spec)]
    excess = posture.capabilities_bounding & ~_ALLOWED_CAPABILITIES
    if excess:
        allowed = ", ".join(CAPABILITIES[:-1]) + f" and {CAPABILITIES[-1]}"
        found.append(f"The container holds capabilities beyond {allowed} ({excess:#x}).")
    if not posture.no_new_privileges:
        found.append("no_new_privileges is not set.")
    if not posture.socket_closed_to_tools:
        found.append("Tool code can reach the daemon's socket.")
    if not posture.root_read_only:
        found.append("The root file system is writable.")
    if posture.network_interfaces:
        names = ", ".join(name[:32] for name in posture.network_interfaces[:8])
        found.append(f"There is a network interface: {names}.")
    gvisor = spec.runtime.startswith("runsc")
    kernel = "gvisor" if gvisor else "linux"
    if posture.runtime != kernel:
        # Also when it is the stronger one: what was asked of one kernel cannot be read from the other.
        found.append(f"The kernel is {posture.runtime[:32] or 'unknown'}; runtime {spec.runtime} has {kernel}.")
    found += mount_weaknesses(posture.mounts, volumes=volumes, gvisor=gvisor)
    # gVisor keeps its own limits, namespaces and system call filter outside; what its /proc says of ours means nothing.
    if not gvisor:
        if posture.seccomp_mode != _SECCOMP_FILTER:
            found.append(f"There is no seccomp filter (mode {posture.seccomp_mode}).")
        if host.landlock and posture.daemon_oom_score_adj >= posture.tool_oom_score_adj_min:
            found.append(
                f"Tool code can have the daemon killed for memory in its place (it may lower its score to "
                f"{posture.tool_oom_score_adj_min}, the daemon's is {posture.daemon_oom_score_adj}); the engine's "
                "seccomp profile must let Landlock be used: upgrade the engine."
            )
        found += _shared_namespaces(posture, gateway_namespaces or {})
        found += _loose_limits(posture, spec, swap_limited=host.swap_limited)
    return found


def own_namespaces() -> dict[str, int]:
    """Return the inodes of this process' namespaces by kind; those that may not be read are left out."""
    found = {}
    for kind in _FIRST_NAMESPACES:
        try:
            found[kind] = Path(f"/proc/self/ns/{kind}").stat().st_ino
        except OSError:
            continue
    return found


def _weak_identities(posture: pb.Posture) -> list[str]:
    found = []
    if posture.tool_uid == 0:
        found.append("Tool code would run as root.")
    if posture.daemon_uid == 0:
        found.append("The daemon runs as root.")
    if posture.tool_uid == posture.daemon_uid:
        found.append("Tool code would run as the daemon's user and could signal it.")
    # Its own group has the number of its user; any other, root's or the channel's, opens files to it.
    foreign = [group for group in posture.tool_groups if group != posture.tool_uid]
    if foreign or not posture.tool_groups:
        groups = ", ".join(map(str, foreign[:8])) or "that it does not tell"
        found.append(f"Tool code would be in groups of others: {groups}.")
    if posture.tool_capabilities_effective:
        found.append(f"Tool code would hold capabilities ({posture.tool_capabilities_effective:#x}).")
    return found


def _open_calls(posture: pb.Posture, spec: SandboxSpec) -> list[str]:
    """What the daemon's filter of system calls should refuse to tool code, and does not."""
    found = []
    families = sorted({*posture.tool_socket_families} - _ALLOWED_FAMILIES)
    if families:
        numbers = ", ".join(map(str, families[:8]))
        found.append(f"Tool code can make sockets of other families than AF_UNIX, AF_INET and AF_INET6: {numbers}.")
    if not posture.socket_programs_refused:
        found.append("Tool code can put BPF programs on sockets.")
    if not posture.seccomp_filters_refused and not spec.limits.seccomp_filters:
        found.append("Tool code can install seccomp filters, which its policy does not allow.")
    return found


def _shared_namespaces(posture: pb.Posture, gateway: Mapping[str, int]) -> list[str]:
    inodes = {namespace.kind: namespace.inode for namespace in posture.namespaces}
    found = []
    for kind, first in _FIRST_NAMESPACES.items():
        inode = inodes.get(kind, 0)
        if not inode:
            found.append(f"Its {kind} namespace is unknown.")
        elif inode in (first, gateway.get(kind)):
            found.append(f"It shares the {kind} namespace of the host or of the gateway.")
    return found


def _loose_limits(posture: pb.Posture, spec: SandboxSpec, *, swap_limited: bool) -> list[str]:
    limits = [
        ("memory limit", posture.memory_limit_bytes, spec.limits.memory_bytes, "bytes"),
        ("process limit", posture.pids_limit, spec.limits.pids, "processes"),
        ("CPU limit", posture.cpu_limit_millis, round(spec.limits.cpus * 1000), "thousandths of a CPU"),
    ]
    if swap_limited:
        limits.append(("memory and swap limit", posture.memory_swap_limit_bytes, spec.limits.memory_bytes, "bytes"))
    return [
        f"The {name} is {real or 'missing'}; {asked} {unit} were asked for."
        for name, real, asked, unit in limits
        if real == 0 or real > asked
    ]
