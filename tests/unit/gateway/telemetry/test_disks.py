"""The disks that a gateway needs room on: one that is short is logged once, and counted until it has room again."""

from __future__ import annotations

import os
from pathlib import Path

from structlog.testing import capture_logs

from gateway.telemetry.attributes import DISK
from gateway.telemetry.gauges import Disks, watched_disks
from sandbox.errors import EngineUnavailable
from tests.unit.gateway.telemetry.seen import watching

_MIB = 1024 * 1024


class _Disk:
    """A disk with as much free as the test says; None is an engine that does not answer."""

    def __init__(self, free_mib: int | None) -> None:
        self.free_mib = free_mib

    async def free(self) -> int:
        if self.free_mib is None:
            raise EngineUnavailable("it does not answer")
        return self.free_mib * _MIB


async def test_a_disk_that_is_short_is_logged_once_and_again_when_it_has_room() -> None:
    disk = _Disk(2000)
    disks = Disks({"engine": disk.free}, 1000 * _MIB, {})
    levels = []
    for disk.free_mib in (2000, 999, 500, None, 500, 1000, 1500, 10):
        with capture_logs() as lines:
            await disks.look()
        levels.append([line["log_level"] for line in lines])
        assert disks.short() == ({} if disk.free_mib is None else {"engine": int(disk.free_mib < 1000)})
    assert levels == [[], ["error"], [], [], [], ["info"], [], ["error"]]


async def test_the_disk_of_the_state_directory_is_watched_without_an_engine(tmp_path: Path) -> None:
    seen = watching()
    async with watched_disks(seen.telemetry, None, tmp_path, reserve_bytes=2**60) as disks:
        with capture_logs() as lines:
            await disks.look()
        ((labels, point),) = seen.points("airlock.disk.free")
    assert labels == {DISK: "state"}
    free = point.value
    found = os.statvfs(tmp_path)
    assert free > found.f_bavail * found.f_frsize // 2
    assert [line["event"].partition(":")[0] for line in lines] == ["the state directory's disk is nearly full"]
