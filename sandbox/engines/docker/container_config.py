"""The configuration of a sandbox's container, as the Docker API takes it: all its isolation (docs/threats.md).

Nothing here talks to Docker. Names are derived from hashes, so no text of a tenant reaches a name or a label.
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.engines.containment import (
    CAPABILITIES,
    CHANNEL_DIRECTORY,
    MESSAGE_QUEUE_BYTES,
    MESSAGE_QUEUES,
    PAGE_BYTES,
    POSIX_QUEUES_BYTES,
    RUNTIME_DIRECTORY,
    SEMAPHORES,
    STEERING_VARIABLES,
    files_limits,
    shared_bytes_limit,
    tmp_limit_bytes,
    user_pair,
)
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Owner, SandboxLimits, SandboxSpec, digest, owner_of

KIND_LABEL = "airlock.kind"
INSTANCE_LABEL = "airlock.instance"
SANDBOX_LABEL = "airlock.sandbox"
TENANT_LABEL = "airlock.tenant"
THREAD_LABEL = "airlock.thread"
# Digest of the whole configuration: after a restart only a sandbox of the same configuration is taken over.
MADE_LABEL = "airlock.made"
# On a pooled sandbox's container and volume: the id of that sandbox.
POOL_LABEL = "airlock.pool"
# On a volume of a thread's name that has no files: the id of the pooled sandbox whose volume has them.
HELD_LABEL = "airlock.held"
# On a sandbox's container: the identity of the directory that its socket is in.
CHANNELS_LABEL = "airlock.channels"
# On the runtime image: how to start the daemon, a JSON list.
COMMAND_LABEL = "airlock.command"

# For the names of one directory at each of some levels.
_EMPTIER_BYTES = 512 * 1024 * 1024
# How many of the host's tasks a process in gVisor takes, most of them its kernel's; idle, that one has some seventy.
_GVISOR_TASKS = 16
# Of every container that runs. Nothing is said of seccomp, so the engine's default filter stays.
WALLS: Mapping[str, Any] = {
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges"],
    "ReadonlyRootfs": True,
    "LogConfig": {"Type": "none", "Config": {}},
    "RestartPolicy": {"Name": "no"},
}
# Settings of the sandbox's own network namespace, as TCP's buffers grow to several MiB by default: the least, the first
# and the largest size. That of other sockets is the same, and the daemon limits their number (daemon/limits/kernel.py).
_SOCKET_BUFFERS = {"net.ipv4.tcp_rmem": "4096 131072 212992", "net.ipv4.tcp_wmem": "4096 16384 212992"}
# What lies over a path that the image declares as a volume: Docker would make a writable one there, without a limit and
# filled from the image, which could put its own files over the daemon's.
_NOTHING = "ro,size=4k,mode=755,nosuid,nodev,noexec"
# Docker takes a variable without "=" out of the image's environment.
_REMOVED_VARIABLES = (
    *STEERING_VARIABLES,
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONMALLOC"),
    *("AIRLOCK_SOCKET", "AIRLOCK_WORKSPACE", "AIRLOCK_TOOL_UID", "AIRLOCK_TOOL_GID", "AIRLOCK_DAEMON_UID"),
    *("AIRLOCK_WORKSPACE_BYTES", "AIRLOCK_WORKSPACE_FILES", "AIRLOCK_DISK_RESERVE_BYTES", "AIRLOCK_SECCOMP_FILTERS"),
)


@dataclass(frozen=True)
class Runtime:
    """The daemon's bundle on this engine: its volume, the command that starts the daemon, and the image it is from."""

    volume: str
    command: Sequence[str]
    image: str = ""


@dataclass(frozen=True)
class Site:
    """Where a gateway instance makes its containers.

    `channel_mount` returns what a sandbox mounts for its socket, by its id, and `channel_group` may enter there
    (channels.py). `workspace_quota` asks the volume driver for a size limit. `channels` is the identity of the channel
    directory, "" where it has none (channel_directory.py).
    """

    instance: str
    channel_mount: Callable[[str], dict[str, Any]]
    channel_group: int
    runtime: Runtime
    workspace_quota: bool
    channels: str = ""


def image_volumes(declared: Iterable[str]) -> tuple[str, ...]:
    """Return where an empty mount covers a volume that an image declares; ValueError inside Airlock's directories."""
    found = set()
    for path in declared:
        # As Docker cleans it. A relative one it refuses itself.
        place = posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else path
        for own in (RUNTIME_DIRECTORY, CHANNEL_DIRECTORY):
            if place.startswith(f"{own}/"):
                raise ValueError(f"it declares a volume at {place}, inside {own}, which Airlock reserves")
        found.add(place)
    return tuple(sorted(found - {WORKSPACE, "/tmp", RUNTIME_DIRECTORY, CHANNEL_DIRECTORY}))  # noqa: S108


def container_name(instance: str, sandbox_id: str) -> str:
    """Return the name of a sandbox's container."""
    return f"airlock-{instance}-{sandbox_id}"


def carrier_name(instance: str, owner: Owner) -> str:
    """Return the name of the one container through which a thread's files are reached while nothing runs there."""
    return container_name(instance, f"carrier-{owner[1]}")


def volume_of(instance: str, holder: str) -> str:
    """Return the name of a workspace volume: of a thread, by its digest, or of a pooled sandbox, which keeps it."""
    return f"airlock-{instance}-workspace-{holder}"


def user_ids(instance: str, tenant: str, thread: str) -> tuple[int, int]:
    """Return the user ids of tool code and of the daemon: a pair of its own for each thread.

    The kernel counts inotify instances, pipes and pending signals by user of the host. Were the ids shared, one tenant
    could use up another's.
    """
    return user_pair(digest(instance, tenant, thread))


def pooled_user_ids(instance: str, sandbox_id: str) -> tuple[int, int]:
    """Return the user ids of a pooled sandbox, and of each later sandbox over its volume."""
    return user_pair(digest("pool", instance, sandbox_id, ""))


def container_config(
    spec: SandboxSpec, site: Site, sandbox_id: str, *, volumes: Sequence[str] = (), pooled: str = ""
) -> dict[str, Any]:
    """Return the body of POST /containers/create. `volumes` are the paths of image_volumes().

    `pooled` is the id of the pooled sandbox whose volume has the files, and whose user ids the sandbox then has; "" for
    the thread's own volume. The configuration of a pooled sandbox itself says nothing of its later owner.
    """
    labels = _owner_labels(spec, site.instance, sandbox_id if is_pooled(sandbox_id) else "")
    if site.channels:
        labels[CHANNELS_LABEL] = site.channels
    runtime_options = {"NoCopy": True, "Labels": {KIND_LABEL: "runtime"}}
    return {
        "Image": spec.image,
        # The image's own entry point, user, health check and stop signal are a tenant's code or choice: none is used.
        "Entrypoint": _command(spec, site, pooled),
        "Cmd": [],
        "User": f"0:{site.channel_group}",
        "WorkingDir": WORKSPACE,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Hostname": "sandbox",
        "Env": list(_REMOVED_VARIABLES),
        "NetworkDisabled": True,
        "Labels": {**labels, KIND_LABEL: "sandbox", SANDBOX_LABEL: sandbox_id},
        "HostConfig": {
            "Runtime": spec.runtime,
            "Init": False,  # pid 1 is ours and reaps
            "NetworkMode": "none",
            "IpcMode": "private",
            **WALLS,
            "CapAdd": list(CAPABILITIES),
            "Tmpfs": {**dict.fromkeys(volumes, _NOTHING), **lasting_tmpfs(spec.limits)},
            # gVisor has IPC and network namespaces of its own, which know none of these.
            "Sysctls": {**lasting_ipc(spec.limits), **_SOCKET_BUFFERS} if spec.runtime == "runc" else {},
            "Mounts": [
                _workspace_mount(spec, site.instance, pooled, quota=site.workspace_quota),
                {**volume_mount(site.runtime.volume, RUNTIME_DIRECTORY, runtime_options), "ReadOnly": True},
                site.channel_mount(sandbox_id),
            ],
            **_limits(spec),
        },
    }


def _command(spec: SandboxSpec, site: Site, pooled: str) -> list[str]:
    own_users = user_ids(site.instance, spec.tenant, spec.thread)
    tool_user, daemon_user = pooled_user_ids(site.instance, pooled) if pooled else own_users
    options = {
        "--workspace-bytes": spec.limits.workspace_bytes,
        "--workspace-files": spec.limits.workspace_files,
        "--disk-reserve-bytes": spec.limits.disk_reserve_bytes,
        "--seccomp-filters": int(spec.limits.seccomp_filters),
        "--tool-uid": tool_user,
        "--tool-gid": tool_user,
        "--daemon-uid": daemon_user,
    }
    return [*site.runtime.command, *(word for name, value in options.items() for word in (name, str(value)))]


def filler_config(image: str, volume: str, instance: str) -> dict[str, Any]:
    """Return a container that is created and never started: creating it fills an empty volume from the image."""
    mount = volume_mount(volume, RUNTIME_DIRECTORY, {"Labels": {KIND_LABEL: "runtime"}})
    return _never_started(image, {INSTANCE_LABEL: instance, KIND_LABEL: "runtime"}, mount)


def carrier_config(image: str, spec: SandboxSpec, instance: str, *, quota: bool, pooled: str = "") -> dict[str, Any]:
    """Return a container that is created and never started, through which a workspace is read or filled.

    Creating it makes the workspace where there is none, as a sandbox does. `pooled` as for container_config().
    """
    return _carrier(image, instance, owner_of(spec), _workspace_mount(spec, instance, pooled, quota=quota))


def emptier_config(image: str, volume: str, instance: str, owner: Owner) -> dict[str, Any]:
    """Return a carrier's container for a volume that is there, whatever it was made of."""
    return _carrier(image, instance, owner, volume_mount(volume, WORKSPACE, {"NoCopy": True}))


def deep_emptier_config(command: Sequence[str], image: str, volume: str, instance: str, owner: Owner) -> dict[str, Any]:
    """Return a container that runs, of the runtime image, and removes what is in a volume (volume_emptier.py).

    `command` starts the daemon. Nothing of the tenant's runs in it.
    """
    body = emptier_config(image, volume, instance, owner)
    *python, _ = command
    return {
        **body,
        "Entrypoint": [*python, "sandbox.daemon.volume_emptier", WORKSPACE],
        "Cmd": [],
        "HostConfig": {
            **body["HostConfig"],
            **WALLS,
            "CapAdd": ["SETUID", "SETGID"],
            "Memory": _EMPTIER_BYTES,
            "MemorySwap": _EMPTIER_BYTES,
            "NanoCpus": 1_000_000_000,
            "PidsLimit": 8,
        },
    }


def _carrier(image: str, instance: str, owner: Owner, mount: dict[str, Any]) -> dict[str, Any]:
    return _never_started(image, {**owner_labels(instance, owner), KIND_LABEL: "carrier"}, mount)


def _never_started(image: str, labels: dict[str, str], mount: dict[str, Any]) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": ["/never-started"],
        "Labels": labels,
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
    }


def owner_labels(instance: str, owner: Owner) -> dict[str, str]:
    """Return the labels that say whose a container or volume is."""
    return {INSTANCE_LABEL: instance, TENANT_LABEL: owner[0], THREAD_LABEL: owner[1]}


def owner_in(labels: Mapping[str, str]) -> Owner:
    """Return whose a container or volume is by its owner_labels()."""
    return labels[TENANT_LABEL], labels[THREAD_LABEL]


def _owner_labels(spec: SandboxSpec, instance: str, pooled: str) -> dict[str, str]:
    return {INSTANCE_LABEL: instance, POOL_LABEL: pooled} if pooled else owner_labels(instance, owner_of(spec))


def _workspace_mount(spec: SandboxSpec, instance: str, pooled: str, *, quota: bool) -> dict[str, Any]:
    labels = {**_owner_labels(spec, instance, pooled), KIND_LABEL: "workspace"}
    options: dict[str, Any] = {"NoCopy": True, "Labels": labels}
    if quota:
        options["DriverConfig"] = {"Name": "local", "Options": {"size": str(spec.limits.workspace_bytes)}}
    volume = volume_of(instance, pooled or owner_of(spec)[1])
    return volume_mount(volume, WORKSPACE, options)


def volume_mount(volume: str, target: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the mount of a volume, which is made by these options where there is none."""
    return {"Type": "volume", "Source": volume, "Target": target, "VolumeOptions": options}


def _limits(spec: SandboxSpec) -> dict[str, Any]:
    limits = spec.limits
    ulimits = {
        "nofile": limits.open_files,
        "core": 0,  # the kernel hands it to a program of the host
        "fsize": limits.workspace_bytes,
        "nproc": limits.pids,  # the control group refuses first, and counts what it refused
        "msgqueue": POSIX_QUEUES_BYTES,
    }
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "PidsLimit": _GVISOR_TASKS * (limits.pids + 8) if spec.runtime == "runsc" else limits.pids,
        "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in ulimits.items()],
    }


def lasting_tmpfs(limits: SandboxLimits) -> dict[str, str]:
    """Return the mount options of /tmp and /dev/shm. A /tmp that does not fit its half is smaller than was asked."""
    files, shared_files = files_limits(limits.memory_bytes)
    size_bytes = min(limits.tmp_bytes, tmp_limit_bytes(limits.memory_bytes))
    shared_bytes = shared_bytes_limit(limits.memory_bytes)
    return {
        "/tmp": f"size={size_bytes},nr_inodes={files},mode=1777,nosuid,nodev,exec",  # noqa: S108
        "/dev/shm": f"size={shared_bytes},nr_inodes={shared_files},mode=1777,nosuid,nodev,noexec",  # noqa: S108
    }


def lasting_ipc(limits: SandboxLimits) -> dict[str, str]:
    """Return the kernel settings, of the sandbox's own IPC namespace, that bound System V IPC."""
    shared_bytes = shared_bytes_limit(limits.memory_bytes)
    return {
        "kernel.shmall": str(shared_bytes // PAGE_BYTES),
        "kernel.shmmax": str(shared_bytes),
        "kernel.shmmni": "128",
        "kernel.msgmni": str(MESSAGE_QUEUES),
        "kernel.msgmnb": str(MESSAGE_QUEUE_BYTES),
        "kernel.msgmax": str(MESSAGE_QUEUE_BYTES),
        "kernel.sem": f"250 {SEMAPHORES} 32 128",
    }
