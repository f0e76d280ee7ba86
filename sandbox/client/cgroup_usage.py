"""Resource usage from the cgroup of a sandbox, read through its daemon: 1 ms a file, while Docker takes 1 s.

Tool code cannot write there, but the daemon could lie: the numbers are bounded, and concern its own sandbox only.
"""

import re

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
    if await _read(sandbox, "cgroup.controllers") is not None:  # version 2
        cpu, per_s = counted(_named(await _read(sandbox, "cpu.stat"), "usage_usec")), 1_000_000
        memory, current, peak_name, pids = "memory", "current", "peak", "pids.current"
        cache = "inactive_file"
    else:
        cpu, per_s = await _number(sandbox, "cpuacct/cpuacct.usage"), 1_000_000_000
        memory, current, peak_name, pids = "memory/memory", "usage_in_bytes", "max_usage_in_bytes", "pids/pids.current"
        cache = "total_inactive_file"
    used = await _number(sandbox, f"{memory}.{current}")
    inactive = _named(await _read(sandbox, f"{memory}.stat"), cache)
    return Usage(
        cpu_s=None if cpu is None else cpu / per_s,
        memory_bytes=None if used is None else max(used - (inactive or 0), 0),
        memory_limit_bytes=counted(posture.memory_limit_bytes),
        memory_peak_bytes=await _number(sandbox, f"{memory}.{peak_name}"),
        pids=counted(await _number(sandbox, pids), PIDS_LIMIT),
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
    return counted(_named(await _read(sandbox, name)))


def _named(data: bytes | None, name: str = "") -> int | None:
    """Return the number in the first line `name number`, or in one that has only a number."""
    found = re.search(rf"^{name} *([0-9]{{1,20}}) *$".encode(), data or b"", re.MULTILINE)
    return None if found is None else int(found[1])
