"""What a daemon reads of its control group, in both versions, and what cannot be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.cgroup_usage import read_usage
from sandbox.engine import Sandbox
from sandbox.errors import NotFound
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


async def test_what_no_control_group_holds_is_not_asked() -> None:
    assert await read_usage(held_by(V2, memory_limit_bytes=0)) is None
