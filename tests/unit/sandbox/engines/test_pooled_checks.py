"""What a pooled sandbox is looked over for, reported by a daemon that may lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.pooled_checks import refuse_used, settled
from sandbox.engines.pooled_sandbox import PooledRefused
from sandbox.errors import DaemonLost, SandboxError
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Answer, Peer, fake_daemon

PIDS = 3


def telling(**changes: Any) -> Answer:
    """Answer as the daemon of a fresh sandbox does, but for what is changed."""
    reported = {
        "health": pb.HealthReply(calls=1, pids=PIDS),
        "process_list": pb.ProcessListReply(),
        "/workspace": pb.EntriesReply(),
        "/tmp": pb.EntriesReply(),
        "/dev/shm": pb.EntriesReply(),
        **changes,
    }

    async def answer(request: pb.Request, peer: Peer) -> None:
        member = request.WhichOneof("call")
        if member == "list":
            await peer.reply(entries=reported[request.list.path])
        elif member is not None:
            await peer.reply(**{member: reported[member]})

    return answer


def sandbox_of(channel: Channel) -> ChannelSandbox:
    return ChannelSandbox("pool-1", SandboxSpec("", "", "image"), channel, pb.Posture())


async def test_a_fresh_sandbox_passes_and_its_places_were_looked_at(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, telling()) as daemon:
        sandbox = sandbox_of(daemon.channel)
        assert await settled(sandbox) == PIDS
        await refuse_used(sandbox, PIDS)
        assert {one.list.path for one in daemon.requests if one.HasField("list")} == {
            "/workspace",
            "/tmp",
            "/dev/shm",
        }


async def test_what_starting_left_behind_for_a_moment_is_not_taken_for_the_daemon_s_own(tmp_path: Path) -> None:
    left = iter([PIDS + 1] * 4)
    still = telling()

    async def answer(request: pb.Request, peer: Peer) -> None:
        if request.WhichOneof("call") == "health":
            await peer.reply(health=pb.HealthReply(calls=1, pids=next(left, PIDS)))
        else:
            await still(request, peer)

    async with fake_daemon(tmp_path, answer) as daemon:
        assert await settled(sandbox_of(daemon.channel)) == PIDS


@pytest.mark.parametrize(
    "changes",
    [
        {"health": pb.HealthReply(calls=1, pids=PIDS + 1)},
        {"health": pb.HealthReply(calls=1, pids=PIDS, memory_kills=1)},
        {"health": pb.HealthReply(calls=1, pids=PIDS, pids_refused=1)},
        {"process_list": pb.ProcessListReply(strays=1)},
    ],
)
async def test_one_in_which_something_ran_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    async with fake_daemon(tmp_path, telling(**changes)) as daemon:
        with pytest.raises(PooledRefused):
            await refuse_used(sandbox_of(daemon.channel), PIDS)


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
async def test_one_in_which_something_lies_is_refused(tmp_path: Path, place: str) -> None:
    entry = pb.Entry(name=b"x", type=pb.ENTRY_TYPE_FILE, mode=0o100600)
    async with fake_daemon(tmp_path, telling(**{place: pb.EntriesReply(entries=[entry], total=1)})) as daemon:
        with pytest.raises(PooledRefused, match=place):
            await refuse_used(sandbox_of(daemon.channel), PIDS)


async def test_one_that_reports_what_cannot_be_is_lost(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, telling(health=pb.HealthReply(calls=0))) as daemon:
        sandbox = sandbox_of(daemon.channel)
        with pytest.raises(DaemonLost):
            await refuse_used(sandbox, PIDS)
        assert not sandbox.alive


async def test_one_that_does_not_report_is_refused(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        raise OSError

    async with fake_daemon(tmp_path, answer) as daemon:
        with pytest.raises(SandboxError):
            await refuse_used(sandbox_of(daemon.channel), PIDS)
