"""What a daemon reads of its control group, in both versions, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.client.cgroup_usage import read_usage
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.errors import NotFound
from sandbox.sandbox import Sandbox
from sandbox.usage import Usage

MIB = 1024 * 1024
V1 = {
    "cpuacct/cpuacct.usage": b"1500000000\n",
    "memory/memory.usage_in_bytes": b"%d\n" % (30 * MIB),
    "memory/memory.max_usage_in_bytes": b"%d\n" % (50 * MIB),
    "memory/memory.stat": b"cache 1\ninactive_file 7\ntotal_inactive_file %d\n" % (10 * MIB),
    "pids/pids.current": b"5\n",
}
V2 = {
    "cgroup.controllers": b"cpu memory pids\n",
    "cpu.stat": b"usage_usec 1500000\nuser_usec 1\n",
    "memory.current": b"%d\n" % (30 * MIB),
    "memory.peak": b"%d\n" % (50 * MIB),
    "memory.stat": b"anon 1\ninactive_file %d\n" % (10 * MIB),
    "pids.current": b"5\n",
}


def held_by(files: dict[str, bytes], *, memory_limit_bytes: int = 64 * MIB) -> Sandbox:
    async def read_lines(path: str, **given: Any) -> Any:
        name = path.removeprefix("/sys/fs/cgroup/")
        if name not in files:
            raise NotFound(path)
        return SimpleNamespace(data=files[name])

    posture = SimpleNamespace(memory_limit_bytes=memory_limit_bytes, pids_limit=512)
    return cast(Sandbox, SimpleNamespace(posture=posture, files=SimpleNamespace(read_lines=read_lines)))


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
async def test_both_versions_say_the_same(files: dict[str, bytes]) -> None:
    assert await read_usage(held_by(files)) == Usage(1.5, 20 * MIB, 64 * MIB, 50 * MIB, 5, 512)


async def test_a_kernel_that_keeps_no_peak_leaves_it_unknown() -> None:
    found = await read_usage(held_by({name: data for name, data in V2.items() if name != "memory.peak"}))
    assert found == Usage(1.5, 20 * MIB, 64 * MIB, None, 5, 512)


async def test_words_that_are_no_counts_are_unknown() -> None:
    found = await read_usage(held_by(dict.fromkeys(V2, b"max -1 1e9 \xff\n") | {"pids.current": b"9" * 30}))
    assert found == Usage(memory_limit_bytes=64 * MIB, pids_limit=512)


async def test_a_sandbox_without_a_cgroup_is_not_asked() -> None:
    assert await read_usage(held_by(V2, memory_limit_bytes=0)) is None


# The files of a container's group with version 2, laid out line by line as Linux 6.1 writes them.
CPU_STAT = """\
usage_usec 2412873
user_usec 1718240
system_usec 694633
nr_periods 151
nr_throttled 9
throttled_usec 412006
nr_bursts 0
burst_usec 0
"""
MEMORY_STAT = """\
anon 12582912
file 20971520
kernel 4063232
kernel_stack 98304
pagetables 286720
sec_pagetables 0
percpu 19200
sock 0
vmalloc 12288
shmem 8388608
zswap 0
zswapped 0
file_mapped 4325376
file_dirty 0
file_writeback 0
swapcached 0
anon_thp 0
file_thp 0
shmem_thp 0
inactive_anon 20840448
active_anon 131072
inactive_file 7340032
active_file 5242880
unevictable 0
slab_reclaimable 2752512
slab_unreclaimable 786432
slab 3538944
workingset_refault_anon 0
workingset_refault_file 0
workingset_activate_anon 0
workingset_activate_file 0
workingset_restore_anon 0
workingset_restore_file 0
workingset_nodereclaim 0
pgscan 0
pgsteal 0
pgscan_kswapd 0
pgscan_direct 0
pgsteal_kswapd 0
pgsteal_direct 0
pgfault 9211
pgmajfault 3
pgrefill 0
pgactivate 1280
pgdeactivate 0
pglazyfree 0
pglazyfreed 0
zswpin 0
zswpout 0
thp_fault_alloc 0
thp_collapse_alloc 0
"""
TREE = {
    "cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
    "cpu.max": "50000 100000\n",
    "cpu.stat": CPU_STAT,
    "memory.current": "37617664\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\noom_group_kill 0\n",
    "memory.max": "67108864\n",
    "memory.peak": "41943040\n",
    "memory.stat": MEMORY_STAT,
    "memory.swap.max": "0\n",
    "pids.current": "7\n",
    "pids.events": "max 5\n",
    "pids.max": "512\n",
}


async def test_the_daemon_and_the_gateway_read_the_same_tree_of_version_2(tmp_path: Path) -> None:
    for name, content in TREE.items():
        (tmp_path / name).write_text(content, encoding="ascii")
    group = Cgroup(str(tmp_path))
    limits = (group.memory_limit_bytes(), group.memory_swap_limit_bytes(), group.pids_limit(), group.cpu_limit_millis())
    assert limits == (64 * MIB, 64 * MIB, 512, 500)
    assert (group.memory_bytes(), group.pids(), group.memory_kills(), group.pids_refused()) == (37617664, 7, 1, 5)
    reported = await read_usage(held_by({name: content.encode() for name, content in TREE.items()}))
    assert reported == Usage(2.412873, 37617664 - 7 * MIB, 64 * MIB, 40 * MIB, 7, 512)


def test_version_2_without_a_limit_says_max(tmp_path: Path) -> None:
    for name in TREE:
        (tmp_path / name).write_text("max 100000\n" if name == "cpu.max" else "max\n", encoding="ascii")
    group = Cgroup(str(tmp_path))
    limits = (group.memory_limit_bytes(), group.memory_swap_limit_bytes(), group.pids_limit(), group.cpu_limit_millis())
    assert limits == (0, 0, 0, 0)
