"""Which mounts a sandbox has, and what each must be: anything else that the daemon reports is a weakness.

The list has the paths that were asked for or that every Docker container has, so a directory or a socket of the host
that was added is found wherever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sandbox.client.replies import plain_text
from sandbox.engines.docker.container_config import CHANNEL_DIRECTORY, RUNTIME_DIRECTORY
from sandbox.filesystem import WORKSPACE
from sandbox.v1 import channel_pb2 as pb

# As many as a daemon reports; there may then be more.
_MOUNTS_LIMIT = 512
_BREACHES_LIMIT = 32
_SHOWN = 4
_SHOWN_CHARS = 128


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
# What the engine lays over parts of /proc and /sys is read-only, or /dev/null, which keeps nothing.
_MASKED = ("/proc/", "/sys/")
_MASK = _Rule(frozenset({"proc", "tmpfs", "devtmpfs"}))
_VOLUME = _Rule(frozenset({"tmpfs"}), read_only=True, inert=True)
# gVisor names its file systems otherwise, has no masks of its own in the list, and shows no flags but read-only.
_NOT_IN_GVISOR = frozenset({"/proc/sys"})


def mount_weaknesses(mounts: Collection[pb.Mount], *, volumes: Collection[str], gvisor: bool) -> list[str]:
    """Return one sentence for each way in which mounts are weaker than asked.

    `volumes` are the paths that the image declares as volumes; Airlock lays something empty over each.
    """
    found = []
    if len(mounts) >= _MOUNTS_LIMIT:
        found.append(f"There are {_MOUNTS_LIMIT} mounts or more, and not all of them are known.")
    there = {mount.path for mount in mounts}
    missing = [path for path, rule in _RULES.items() if rule.needed and path not in there]
    if gvisor:
        missing = [path for path in missing if path not in _NOT_IN_GVISOR]
    if missing:
        found.append(f"Nothing is mounted at {_shown(missing)}.")
    strangers = [mount.path for mount in mounts if _rule(mount.path, volumes) is None]
    if strangers:
        found.append(f"There are mounts that were not asked for: {_shown(strangers)}.")
    rules = ((mount, _rule(mount.path, volumes)) for mount in mounts)
    breaches = [said for mount, rule in rules if rule for said in _breaches(mount, rule, gvisor=gvisor)]
    found += breaches[:_BREACHES_LIMIT]
    if not gvisor and not any(_is_masked(path) for path in there):
        found.append("Nothing of /proc and /sys is hidden.")
    return found


def _rule(path: str, volumes: Collection[str]) -> _Rule | None:
    known = _RULES.get(path)
    if known is not None:
        return known
    if path.startswith(f"{_CGROUPS}/"):
        return _ENGINE_FILE
    if path.startswith(_MASKED):
        return _MASK
    return _VOLUME if path in volumes else None


def _is_masked(path: str) -> bool:
    return path.startswith(_MASKED) and path not in _RULES and not path.startswith(f"{_CGROUPS}/")


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
    shown = ", ".join(plain_text(text)[:_SHOWN_CHARS] for text in every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"
