"""Bounds on memory that stays taken when the processes that took it are dead.

Files in /tmp and /dev/shm, System V and POSIX IPC belong to no process: when they fill the memory limit, killing tool
code frees nothing and the kernel comes for the daemon. So all of it together stays below half of the limit. The other
half is the daemon's reserve: whatever else fills it belongs to processes, and tool code's are killed first.
"""

from sandbox.sandbox import SandboxLimits

_MIB = 1024 * 1024
_SHARED_LIMIT_BYTES = 16 * _MIB  # of /dev/shm, and of System V shared memory
_PAGE_BYTES = 4096
# So much of the memory limit allows one file. Few, because the ACLs of a tmpfs file are charged to no group and may
# have 64 KiB: files without end would take memory from the whole host.
_BYTES_PER_TMP_FILE = 32 * 1024
_BYTES_PER_SHARED_FILE = 256 * 1024
_FILE_COST_BYTES = 2 * 1024  # inode, name, and extended attributes, which the kernel counts as if they were files
_MESSAGE_QUEUES = 8
_MESSAGE_QUEUE_BYTES = 8 * 1024
_MESSAGE_COST_BYTES = 64  # of an empty message; a queue takes as many as its limit has bytes
_SEMAPHORES = 4_000
_SEMAPHORE_COST_BYTES = 128
POSIX_QUEUES_BYTES = 800 * 1024  # RLIMIT_MSGQUEUE


def lasting_tmpfs(limits: SandboxLimits) -> dict[str, str]:
    """Return the mount options of /tmp and /dev/shm. A /tmp that does not fit its half is smaller than was asked."""
    files, shared_files = _files(limits.memory_bytes)
    size_bytes = min(limits.tmp_bytes, tmp_limit_bytes(limits.memory_bytes))
    shared_bytes = _shared_bytes(limits.memory_bytes)
    return {
        "/tmp": f"size={size_bytes},nr_inodes={files},mode=1777,nosuid,nodev,exec",  # noqa: S108
        "/dev/shm": f"size={shared_bytes},nr_inodes={shared_files},mode=1777,nosuid,nodev,noexec",  # noqa: S108
    }


def lasting_ipc(limits: SandboxLimits) -> dict[str, str]:
    """Return the kernel settings, of the sandbox's own IPC namespace, that bound System V IPC."""
    shared_bytes = _shared_bytes(limits.memory_bytes)
    return {
        "kernel.shmall": str(shared_bytes // _PAGE_BYTES),
        "kernel.shmmax": str(shared_bytes),
        "kernel.shmmni": "128",
        "kernel.msgmni": str(_MESSAGE_QUEUES),
        "kernel.msgmnb": str(_MESSAGE_QUEUE_BYTES),
        "kernel.msgmax": str(_MESSAGE_QUEUE_BYTES),
        "kernel.sem": f"250 {_SEMAPHORES} 32 128",
    }


def socket_buffers() -> dict[str, str]:
    """Return the kernel settings, of the sandbox's own network namespace, that keep TCP's buffers from growing.

    By default they grow to several MiB. The least, the first and the largest size; that of other sockets is the same,
    and the daemon limits their number (sandbox/daemon/limits/kernel.py).
    """
    return {"net.ipv4.tcp_rmem": "4096 131072 212992", "net.ipv4.tcp_wmem": "4096 16384 212992"}


def tmp_limit_bytes(memory_bytes: int) -> int:
    """Return how large /tmp may be under a memory limit: what the rest leaves of the half, at least 1 MiB."""
    rest_bytes = (
        sum(_files(memory_bytes)) * _FILE_COST_BYTES
        + 2 * _shared_bytes(memory_bytes)
        + _MESSAGE_QUEUES * _MESSAGE_QUEUE_BYTES * _MESSAGE_COST_BYTES
        + _SEMAPHORES * _SEMAPHORE_COST_BYTES
        + POSIX_QUEUES_BYTES
    )
    return max(memory_bytes // 2 - rest_bytes, _MIB)


def _files(memory_bytes: int) -> tuple[int, int]:
    return memory_bytes // _BYTES_PER_TMP_FILE, memory_bytes // _BYTES_PER_SHARED_FILE


def _shared_bytes(memory_bytes: int) -> int:
    return min(_SHARED_LIMIT_BYTES, memory_bytes // 16)
