"""What holds a sandbox, compared with what its spec asks. The kernel's word, read by the daemon, decides."""

from __future__ import annotations

from sandbox.engine import SandboxSpec
from sandbox.v1 import channel_pb2 as pb

# Capability numbers of <linux/capability.h>: what pid 1 needs to switch users and to end what they started.
_ALLOWED_CAPABILITIES = (1 << 0) | (1 << 5) | (1 << 6) | (1 << 7)  # CHOWN, KILL, SETGID, SETUID
_SECCOMP_FILTER = 2


def weaknesses(posture: pb.Posture, spec: SandboxSpec, *, swap_limited: bool = True) -> list[str]:
    """Return one sentence for each way in which the sandbox is weaker than asked; none means it may be used.

    `swap_limited` is false on a host whose kernel cannot limit swap; then memory alone is checked.
    """
    found = []
    if posture.tool_uid == 0:
        found.append("Tool code would run as root.")
    if posture.daemon_uid == 0:
        found.append("The daemon runs as root.")
    if posture.tool_uid == posture.daemon_uid:
        found.append("Tool code would run as the daemon's user and could signal it.")
    if posture.tool_capabilities_effective:
        found.append(f"Tool code would hold capabilities ({posture.tool_capabilities_effective:#x}).")
    excess = posture.capabilities_bounding & ~_ALLOWED_CAPABILITIES
    if excess:
        found.append(f"The container holds capabilities beyond CHOWN, SETUID, SETGID and KILL ({excess:#x}).")
    if not posture.no_new_privileges:
        found.append("no_new_privileges is not set.")
    if not posture.root_read_only:
        found.append("The root file system is writable.")
    if posture.network_interfaces:
        names = ", ".join(name[:32] for name in posture.network_interfaces[:8])
        found.append(f"There is a network interface: {names}.")
    # gVisor keeps its own limits and its own system call filter outside; what its /proc says of ours means nothing.
    if spec.runtime == "runc":
        if posture.seccomp_mode != _SECCOMP_FILTER:
            found.append(f"There is no seccomp filter (mode {posture.seccomp_mode}).")
        found += _loose_limits(posture, spec, swap_limited=swap_limited)
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
