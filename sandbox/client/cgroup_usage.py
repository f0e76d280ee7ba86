"""Resource usage from the cgroup of a sandbox, read through its daemon: 1 ms a file, while Docker takes 1 s.

Tool code cannot write there, but the daemon could lie: the numbers are bounded, and concern its own sandbox only.
"""

from __future__ import annotations

from sandbox.errors import NotFound
from sandbox.sandbox import Sandbox
from sandbox.usage import PIDS_LIMIT, Usage, counted

_ROOT = "/sys/fs/cgroup"
_LINES, _PAGE_BYTES = 200, 16 * 1024


async def read_usage(sandbox: Sandbox) -> Usage | None:
    """Return the usage of a sandbox; None if it has no cgroup. Raises SandboxError."""
    posture = sandbox.posture
    if not posture.memory_limit_bytes:
        return None  # gVisor, or the in-memory engine
    unified = await _read(sandbox, "cgroup.controllers") is not None
    if unified:
        cpu = counted(_named(await _read(sandbox, "cpu.stat"), "usage_usec"))
        cpu_s = None if cpu is None else cpu / 1_000_000
        used, peak = await _number(sandbox, "memory.current"), await _number(sandbox, "memory.peak")
        inactive = _named(await _read(sandbox, "memory.stat"), "inactive_file")
        pids = await _number(sandbox, "pids.current")
    else:
        cpu = await _number(sandbox, "cpuacct/cpuacct.usage")
        cpu_s = None if cpu is None else cpu / 1_000_000_000
        used = await _number(sandbox, "memory/memory.usage_in_bytes")
        peak = await _number(sandbox, "memory/memory.max_usage_in_bytes")
        inactive = _named(await _read(sandbox, "memory/memory.stat"), "total_inactive_file")
        pids = await _number(sandbox, "pids/pids.current")
    return Usage(
        cpu_s=cpu_s,
        memory_bytes=None if used is None else max(used - (inactive or 0), 0),
        memory_limit_bytes=counted(posture.memory_limit_bytes),
        memory_peak_bytes=peak,
        pids=counted(pids, PIDS_LIMIT),
        pids_limit=counted(posture.pids_limit, PIDS_LIMIT),
    )


async def _read(sandbox: Sandbox, name: str) -> bytes | None:
    try:
        # By lines, which are read to the end: the kernel reports a size of 0 for such a file.
        page = await sandbox.files.read_lines(f"{_ROOT}/{name}", limit=_LINES, limit_bytes=_PAGE_BYTES)
    except NotFound:
        return None
    return page.data


async def _number(sandbox: Sandbox, name: str) -> int | None:
    return counted(_integer((await _read(sandbox, name) or b"").strip()))


def _named(data: bytes | None, name: str) -> int | None:
    """Return the number in the line `name number`."""
    for line in (data or b"").splitlines():
        key, _, value = line.partition(b" ")
        if key == name.encode():
            return _integer(value.strip())
    return None


def _integer(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) <= 20 else None
