"""What holds a sandbox on every engine that makes containers: directories, capabilities, users, lasting memory."""

RUNTIME_DIRECTORY = "/opt/airlock"
CHANNEL_DIRECTORY = "/run/airlock"
# Where a container's last words go on Kubernetes: closed to tool code, as the directory is.
ENDED_FILE = f"{CHANNEL_DIRECTORY}/ended"
CAPABILITIES = ("CHOWN", "SETUID", "SETGID", "KILL")
# Above a host's own and subordinate ids, below the groups by which the daemon finds a call's processes.
_FIRST_USER = 600_000_000
_USER_PAIRS = 200_000_000
# How a program of the bundle is started; the runtime image's label airlock.command is this, for the daemon.
RUNTIME_PYTHON = (
    *("/opt/airlock/lib/ld.so", "--inhibit-cache", "--library-path", "/opt/airlock/lib"),
    *("/opt/airlock/bin/python3", "-I", "-S", "-B", "-X", "utf8"),
)
# Variables by which a tenant's image could steer the loader, libc or libraries of pid 1, which is root inside; and what
# has no effect, where one cannot be unset. Python, started with -I, reads none of its own.
STEERING_VARIABLES = {
    **dict.fromkeys(("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT"), ""),
    **dict.fromkeys(("LD_PROFILE", "LD_PROFILE_OUTPUT", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "MALLOC_TRACE"), ""),
    **dict.fromkeys(("OPENSSL_CONF", "OPENSSL_MODULES"), ""),
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb",
}


def user_pair(drawn: str) -> tuple[int, int]:
    """Return the user ids of tool code and of the daemon for a digest."""
    number = int(drawn, 16) % _USER_PAIRS
    return _FIRST_USER + 2 * number, _FIRST_USER + 2 * number + 1


# Bounds on memory that stays taken when the processes that took it are dead.
#
# Files in /tmp and /dev/shm, System V and POSIX IPC belong to no process: when they fill the memory limit, killing tool
# code frees nothing and the kernel comes for the daemon. So all of it together stays below half of the limit. The other
# half is the daemon's reserve: whatever else fills it belongs to processes, and tool code's are killed first.
_MIB = 1024 * 1024
_SHARED_LIMIT_BYTES = 16 * _MIB  # of /dev/shm, and of System V shared memory
PAGE_BYTES = 4096
# So much of the memory limit allows one file. Few, because the ACLs of a tmpfs file are charged to no group and may
# have 64 KiB: files without end would take memory from the whole host.
_BYTES_PER_TMP_FILE = 32 * 1024
_BYTES_PER_SHARED_FILE = 256 * 1024
_FILE_COST_BYTES = 2 * 1024  # inode, name, and extended attributes, which the kernel counts as if they were files
MESSAGE_QUEUES = 8
MESSAGE_QUEUE_BYTES = 8 * 1024
_MESSAGE_COST_BYTES = 64  # of an empty message; a queue takes as many as its limit has bytes
SEMAPHORES = 4_000
_SEMAPHORE_COST_BYTES = 128
POSIX_QUEUES_BYTES = 800 * 1024  # RLIMIT_MSGQUEUE


def tmp_limit_bytes(memory_bytes: int) -> int:
    """Return how large /tmp may be under a memory limit: what the rest leaves of the half, at least 1 MiB."""
    rest_bytes = (
        sum(files_limits(memory_bytes)) * _FILE_COST_BYTES
        + 2 * shared_bytes_limit(memory_bytes)
        + MESSAGE_QUEUES * MESSAGE_QUEUE_BYTES * _MESSAGE_COST_BYTES
        + SEMAPHORES * _SEMAPHORE_COST_BYTES
        + POSIX_QUEUES_BYTES
    )
    return max(memory_bytes // 2 - rest_bytes, _MIB)


def files_limits(memory_bytes: int) -> tuple[int, int]:
    """Return how many files /tmp and /dev/shm may have under a memory limit."""
    return memory_bytes // _BYTES_PER_TMP_FILE, memory_bytes // _BYTES_PER_SHARED_FILE


def shared_bytes_limit(memory_bytes: int) -> int:
    """Return how large /dev/shm, and all of System V shared memory, may be under a memory limit."""
    return min(_SHARED_LIMIT_BYTES, memory_bytes // 16)
