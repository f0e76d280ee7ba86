"""What holds a sandbox, compared with what its spec asks. The kernel's word, read by the daemon, decides."""

import ctypes
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.client.replies import plain_text
from sandbox.engines.containment import CAPABILITIES, CHANNEL_DIRECTORY, ENDED_FILE, RUNTIME_DIRECTORY
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb

# The same number on every architecture; asked for its version it makes nothing.
_LANDLOCK_CREATE_RULESET = 444
_CREATE_RULESET_VERSION = 1
# The first version in which files may be moved between directories inside a domain; Linux 5.19.
MOVING_VERSION = 2
# Versions by the release of the kernel that has them first.
_LANDLOCK_SINCE = {(5, 13): 1, (5, 19): 2, (6, 2): 3}
# As many as a daemon reports; there may then be more.
_MOUNTS_LIMIT = 512
_SHOWN = 4
# The numbers of <linux/capability.h> for what container_config.py may ask for.
_CAPABILITY_NUMBERS = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_RESOURCE": 24}
_ALLOWED_CAPABILITIES = sum(1 << _CAPABILITY_NUMBERS[name] for name in CAPABILITIES)
_SECCOMP_FILTER = 2
_ALLOWED_FAMILIES = frozenset({1, 2, 10})  # AF_UNIX, AF_INET, AF_INET6
# The kinds that must be the sandbox's own, with the inodes that the host's first ones have on every Linux: a gateway in
# a container does not see them. <linux/proc_ns.h>; older kernels number the last two as they come.
_FIRST_NAMESPACES = {"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "pid": 0xEFFFFFFC, "net": 0xEFFFFFF9, "mnt": 0xEFFFFFF8}


@dataclass(frozen=True)
class HostKernel:
    """What the host's kernel can do at all: a sandbox is not refused for what no sandbox here could have.

    `swap_limited`: control groups limit swap. `landlock`: processes can be kept from writing under /proc.
    `gateway_namespaces` are kind -> inode as own_namespaces() has them, none on another machine.
    """

    swap_limited: bool = True
    landlock: bool = True
    gateway_namespaces: Mapping[str, int] = field(default_factory=dict)


def has_landlock(version: int = MOVING_VERSION) -> bool:
    """Return whether the kernel of this machine offers a version of Landlock, and this process may ask it."""
    libc = ctypes.CDLL(None)
    offered = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION))
    return int(offered) >= version


def landlock_of(kernel: str) -> int:
    """Return the version of Landlock that kernels of a release have, such as 6.1.0-13-amd64; 0 for none or unknown."""
    found = re.match(r"(\d+)\.(\d+)", kernel)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return max((version for since, version in _LANDLOCK_SINCE.items() if since <= release), default=0)


@dataclass(frozen=True)
class _Rule:
    """What a mount must be. `types` empty means any; a mount is `needed` when its absence is a weakness."""

    types: frozenset[str] = frozenset()
    needed: bool = False
    read_only: bool = False
    tool_may_write: bool = False
    # What tool code can fill must not hold set-user-id programs or devices.
    inert: bool = False


def _tmpfs(*, needed: bool = False) -> _Rule:
    return _Rule(frozenset({"tmpfs"}), needed=needed, tool_may_write=True, inert=True)


_CGROUPS = "/sys/fs/cgroup"
_ENGINE_FILE = _Rule(read_only=True)
# A rootless engine may make no devices, and mounts the host's one by one; a daemon says of none but these that tool
# code cannot write there.
_DEVICE = _Rule(frozenset({"devtmpfs"}))
# The paths that were asked for or that every Docker container has, so a directory or a socket of the host that was
# added is found wherever it is.
_RULES = {
    "/": _Rule(needed=True, read_only=True),
    "/proc": _Rule(frozenset({"proc"}), needed=True),
    "/proc/sys": _Rule(frozenset({"proc"}), needed=True, read_only=True),
    "/sys": _Rule(frozenset({"sysfs"}), read_only=True),
    # Its subdirectories, the controllers of version 1, are read-only; version 2 has none and is itself.
    _CGROUPS: _Rule(frozenset({"tmpfs", "cgroup2"})),
    "/dev": _Rule(frozenset({"tmpfs"})),
    "/dev/pts": _Rule(frozenset({"devpts"})),
    **dict.fromkeys(("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"), _DEVICE),
    "/dev/shm": _tmpfs(),  # noqa: S108
    # Of the sandbox's own IPC namespace, and bounded by RLIMIT_MSGQUEUE.
    "/dev/mqueue": _Rule(frozenset({"mqueue"}), tool_may_write=True, inert=True),
    "/tmp": _tmpfs(needed=True),  # noqa: S108
    # Docker gives a volume neither nosuid nor nodev. no_new_privileges takes the one's place for everything in the
    # sandbox, and without the capability to make devices there are none.
    WORKSPACE: _Rule(needed=True, tool_may_write=True),
    RUNTIME_DIRECTORY: _Rule(needed=True, read_only=True),
    CHANNEL_DIRECTORY: _Rule(needed=True),
    "/etc/resolv.conf": _ENGINE_FILE,
    "/etc/hostname": _ENGINE_FILE,
    "/etc/hosts": _ENGINE_FILE,
}
# A kubelet mounts its volumes without nosuid and nodev; no_new_privileges and the missing capability stand for those,
# as for the workspace. In the last one it reads why a container ended; in the channel's directory no tool gets at it.
_KUBERNETES_RULES = {
    **_RULES,
    "/tmp": _Rule(frozenset({"tmpfs"}), needed=True, tool_may_write=True),  # noqa: S108
    ENDED_FILE: _Rule(),
}
# What the engine lays over parts of /proc and /sys is read-only, or /dev/null, which keeps nothing.
_MASKED = ("/proc/", "/sys/")
_MASK = _Rule(frozenset({"proc", "tmpfs", "devtmpfs"}))
_VOLUME = _Rule(frozenset({"tmpfs"}), read_only=True, inert=True)


@dataclass(frozen=True)
class Promise:
    """What an engine gives each of its sandboxes; the rest is the spec's.

    `network`: there is an interface, and something outside the sandbox admits nothing by it. `pids_limited`: the
    kernel limits processes. `files_limited`: a tmpfs has a limit of files; where none has, tool code sets no extended
    attributes, since ACLs of tmpfs files are memory of the host that no control group counts.
    """

    rules: Mapping[str, _Rule]
    network: bool = False
    pids_limited: bool = True
    files_limited: bool = True


DOCKER = Promise(_RULES)


def kubernetes(*, pids_limited: bool) -> Promise:
    """Return what a Pod gives: a NetworkPolicy closes its network, and a kubelet limits its processes."""
    return Promise(_KUBERNETES_RULES, network=True, pids_limited=pids_limited, files_limited=False)


# gVisor names its file systems otherwise, has no masks of its own in the list, and shows no flags but read-only.
_NOT_IN_GVISOR = frozenset({"/proc/sys"})


def mount_weaknesses(
    mounts: Collection[pb.Mount], *, volumes: Collection[str], gvisor: bool, rules: Mapping[str, _Rule] = _RULES
) -> list[str]:
    """Return one sentence for each way in which mounts are weaker than asked.

    `volumes` are the paths that the image declares as volumes; Airlock lays something empty over each.
    """
    found = []
    if len(mounts) >= _MOUNTS_LIMIT:
        found.append(f"There are {_MOUNTS_LIMIT} mounts or more, and not all of them are known.")
    there = {mount.path for mount in mounts}
    missing = [path for path, rule in rules.items() if rule.needed and path not in there]
    if gvisor:
        missing = [path for path in missing if path not in _NOT_IN_GVISOR]
    if missing:
        found.append(f"Nothing is mounted at {_shown(missing)}.")
    strangers = [mount.path for mount in mounts if _rule(mount.path, volumes, rules) is None]
    if strangers:
        found.append(f"There are mounts that were not asked for: {_shown(strangers)}.")
    ruled = ((mount, _rule(mount.path, volumes, rules)) for mount in mounts)
    breaches = [said for mount, rule in ruled if rule for said in _breaches(mount, rule, gvisor=gvisor)]
    found += breaches[:32]
    if not gvisor and not any(_rule(path, (), rules) is _MASK for path in there):
        found.append("Nothing of /proc and /sys is hidden.")
    return found


def _rule(path: str, volumes: Collection[str], rules: Mapping[str, _Rule]) -> _Rule | None:
    known = rules.get(path)
    if known is not None:
        return known
    if path.startswith(f"{_CGROUPS}/"):
        return _ENGINE_FILE
    if path.startswith(_MASKED):
        return _MASK
    return _VOLUME if path in volumes else None


def _breaches(mount: pb.Mount, rule: _Rule, *, gvisor: bool) -> list[str]:
    found = []
    path = _shown([mount.path])
    if rule.read_only and not mount.read_only:
        found.append(f"{path} is writable.")
    elif mount.tool_writable and not rule.tool_may_write:
        found.append(f"Tool code can write to {path}.")
    if gvisor:
        return found
    if rule.types and mount.type not in rule.types:
        found.append(f"{path} is {_shown([mount.type])} where {' or '.join(sorted(rule.types))} was asked for.")
    if rule.inert and not (mount.no_suid and mount.no_dev):
        found.append(f"{path} is mounted without nosuid and nodev.")
    return found


def _shown(texts: Iterable[str]) -> str:
    """Return texts of a sandbox for people: few, short and printable."""
    every = list(texts)
    shown = ", ".join(plain_text(text)[:128] for text in every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"


def weaknesses(
    posture: pb.Posture,
    spec: SandboxSpec,
    *,
    host: HostKernel | None = None,
    volumes: Collection[str] = (),
    promise: Promise = DOCKER,
) -> list[str]:
    """Return one sentence for each way in which the sandbox is weaker than asked; none means it may be used.

    `host` is what its kernel can do at all, everything when not given: what it cannot is not asked for.
    `volumes` are the paths that the image declares.
    """
    host = host or HostKernel()
    found = [*_weak_identities(posture), *_open_calls(posture, spec, files_limited=promise.files_limited)]
    excess = posture.capabilities_bounding & ~_ALLOWED_CAPABILITIES
    if excess:
        allowed = ", ".join(CAPABILITIES[:-1]) + f" and {CAPABILITIES[-1]}"
        found.append(f"The container holds capabilities beyond {allowed} ({excess:#x}).")
    found += _said(
        (not posture.no_new_privileges, "no_new_privileges is not set."),
        (not posture.socket_closed_to_tools, "Tool code can reach the daemon's socket."),
        (not posture.root_read_only, "The root file system is writable."),
    )
    if posture.network_interfaces and not promise.network:
        names = ", ".join(name[:32] for name in posture.network_interfaces[:8])
        found.append(f"There is a network interface: {names}.")
    gvisor = spec.runtime.startswith("runsc")
    kernel = "gvisor" if gvisor else "linux"
    if posture.runtime != kernel:
        # Also when it is the stronger one: what was asked of one kernel cannot be read from the other.
        found.append(f"The kernel is {posture.runtime[:32] or 'unknown'}; runtime {spec.runtime} has {kernel}.")
    found += mount_weaknesses(posture.mounts, volumes=volumes, gvisor=gvisor, rules=promise.rules)
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
        found += _shared_namespaces(posture, host.gateway_namespaces, spec.runtime)
        found += _loose_limits(posture, spec, swap_limited=host.swap_limited, pids_limited=promise.pids_limited)
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
    same_user = posture.tool_uid == posture.daemon_uid
    found = _said(
        (posture.tool_uid == 0, "Tool code would run as root."),
        (posture.daemon_uid == 0, "The daemon runs as root."),
        (same_user, "Tool code would run as the daemon's user and could signal it."),
    )
    # Its own group has the number of its user; any other, root's or the channel's, opens files to it.
    others = [group for group in posture.tool_groups if group != posture.tool_uid]
    if others or not posture.tool_groups:
        groups = ", ".join(map(str, others[:8])) or "unknown"
        found.append(f"Tool code would be in groups other than its own: {groups}.")
    if posture.tool_capabilities_effective:
        found.append(f"Tool code would hold capabilities ({posture.tool_capabilities_effective:#x}).")
    return found


def _said(*weaknesses: tuple[bool, str]) -> list[str]:
    return [said for is_so, said in weaknesses if is_so]


def _open_calls(posture: pb.Posture, spec: SandboxSpec, *, files_limited: bool) -> list[str]:
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
    if not posture.extended_attributes_refused and not files_limited:
        found.append("Tool code can set extended attributes, by which it takes memory of the node that nothing limits.")
    return found


def _shared_namespaces(posture: pb.Posture, gateway: Mapping[str, int], runtime: str) -> list[str]:
    inodes = {namespace.kind: namespace.inode for namespace in posture.namespaces}
    found = []
    for kind, first in _FIRST_NAMESPACES.items():
        inode = inodes.get(kind, 0)
        if not inode:
            found.append(f"Its {kind} namespace is unknown.")
        elif kind == "net" and runtime == "kata":
            continue  # the first one of a virtual machine that is the sandbox's own
        elif inode in (first, gateway.get(kind)):
            found.append(f"It shares the {kind} namespace of the host or of the gateway.")
    return found


def _loose_limits(posture: pb.Posture, spec: SandboxSpec, *, swap_limited: bool, pids_limited: bool) -> list[str]:
    limits = [
        ("memory limit", posture.memory_limit_bytes, spec.limits.memory_bytes, "bytes"),
        ("CPU limit", posture.cpu_limit_millis, round(spec.limits.cpus * 1000), "thousandths of a CPU"),
    ]
    if pids_limited:
        limits.append(("process limit", posture.pids_limit, spec.limits.pids, "processes"))
    if swap_limited:
        limits.append(("memory and swap limit", posture.memory_swap_limit_bytes, spec.limits.memory_bytes, "bytes"))
    return [
        f"The {name} is {real or 'missing'}; {asked} {unit} were asked for."
        for name, real, asked, unit in limits
        if real == 0 or real > asked
    ]
