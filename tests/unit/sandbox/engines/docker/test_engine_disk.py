"""The reserve of an engine's disk, as a restore keeps to it, on a disk that is made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.engines.docker.workspace_transfer import EngineDisk
from sandbox.errors import NoSpace

MIB = 1024 * 1024


class Disks:
    """What is free by path; the engine's data are at /data, as far as it says."""

    def __init__(self, free_mib: Mapping[str, int], *, said: bool = True) -> None:
        self.free_mib = {Path(path): free for path, free in free_mib.items()}
        self.said = {"DockerRootDir": "/data"} if said else {}

    async def ask(self, request: Any) -> Any:
        return request(SimpleNamespace(info=lambda: self.said))

    def free_bytes(self, path: Path) -> int:
        if path not in self.free_mib:
            raise FileNotFoundError(path)
        return self.free_mib[path] * MIB

    def disk(self) -> EngineDisk:
        return EngineDisk(cast(Any, self), self.free_bytes)


async def test_what_would_not_leave_the_reserve_is_refused_before_anything_is_removed() -> None:
    disk = Disks({"/data": 1000}).disk()
    await disk.refuse_short(600 * MIB, 400 * MIB)
    with pytest.raises(NoSpace, match=r"401 MiB more would use the operator's reserve"):
        await disk.refuse_short(600 * MIB, 401 * MIB)
    await disk.refuse_short(0, 10**15)


@pytest.mark.parametrize(
    "disks",
    [Disks({"/data/volumes": 5, "/data": 9, "/": 9}), Disks({"/data": 5, "/": 9}), Disks({"/": 5})],
    ids=["volumes of their own", "no look into the data", "in a container"],
)
async def test_the_disk_is_where_the_volumes_are_as_far_as_the_gateway_sees_it(disks: Disks) -> None:
    disk = disks.disk()
    await disk.refuse_short(MIB, 4 * MIB)
    with pytest.raises(NoSpace):
        await disk.refuse_short(MIB, 5 * MIB)


async def test_where_the_engine_does_not_say_where_its_data_are_the_root_of_the_machine_counts() -> None:
    disk = Disks({"volumes": 99, ".": 99, "/": 5}, said=False).disk()
    with pytest.raises(NoSpace):
        await disk.refuse_short(MIB, 5 * MIB)


async def test_what_is_being_written_ends_when_others_have_filled_the_disk() -> None:
    disks = Disks({"/data": 1000})
    disk = disks.disk()
    await disk.refuse_short(500 * MIB, 100 * MIB)
    passed = 0
    with pytest.raises(NoSpace):
        for piece in disk.watched((bytes(MIB) for _ in range(100)), 500 * MIB):
            passed += len(piece)
            disks.free_mib[Path("/data")] -= 20
    assert passed < 40 * MIB
    assert sum(map(len, disk.watched([bytes(MIB)] * 100, 0))) == 100 * MIB
