"""The first word with a sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandbox.client.channel import PROTOCOL_VERSION, Channel
from sandbox.client.unix_address import UnixAddress
from sandbox.engines.build import own_build
from sandbox.engines.handshake import connected, introduced
from sandbox.errors import SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.engines.test_posture import posture
from tests.unit.sandbox.fake_daemon import Answer, Peer, fake_daemon


def saying(**hello: object) -> Answer:
    async def answer(request: pb.Request, peer: Peer) -> None:
        said = pb.HelloReply(protocol_version=PROTOCOL_VERSION, **hello)  # type: ignore[arg-type]
        await peer.reply(hello=said)

    return answer


async def under_way() -> None:
    await asyncio.Event().wait()


async def ended() -> None:
    raise SandboxUnavailable("it ended at once")


async def test_a_daemon_that_listens_is_connected_to_before_its_start_is_said_to_be_done(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, saying()) as daemon:
        boot = asyncio.ensure_future(under_way())
        await connected(daemon.channel, boot, ended)
        assert not boot.done()
        boot.cancel()


async def test_a_failed_start_is_the_reason_why_the_port_is_closed(tmp_path: Path) -> None:
    async def fail() -> None:
        raise SandboxUnavailable("the engine refused")

    with pytest.raises(SandboxUnavailable, match="the engine refused"):
        await connected(Channel(UnixAddress(tmp_path)), asyncio.ensure_future(fail()), under_way)


async def test_a_daemon_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    boot = asyncio.ensure_future(asyncio.sleep(0))
    with pytest.raises(SandboxUnavailable, match="it ended at once"):
        await connected(Channel(UnixAddress(tmp_path)), boot, ended)


async def test_a_daemon_of_this_release_is_believed(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, saying(build=own_build(), posture=posture())) as daemon:
        assert await introduced(daemon.channel) == posture()


@pytest.mark.parametrize(
    "build, said",
    [
        ("", "build is unknown"),
        ("0" * 64, "build is 000000000000, "),
        ("\x1b[2J" * 9, "build is 2J2J2J"),
        (own_build().upper(), "from different releases"),
        (own_build()[:-1], "from different releases"),
    ],
    ids=["none", "another", "hostile", "upper case", "cut"],
)
async def test_a_daemon_of_another_release_is_refused_with_how_to_fix_it(tmp_path: Path, build: str, said: str) -> None:
    async with fake_daemon(tmp_path, saying(build=build)) as daemon:
        with pytest.raises(SandboxUnavailable, match=r"`airlock images build`") as refused:
            await introduced(daemon.channel)
        assert said in str(refused.value)
        assert "\x1b" not in str(refused.value)


async def test_a_daemon_that_cannot_say_what_holds_it_is_refused(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(failure=pb.Failure(kind=pb.FAILURE_KIND_INTERNAL, message="no process can be made"))

    async with fake_daemon(tmp_path, answer) as daemon:
        with pytest.raises(SandboxUnavailable, match="handshake with the sandbox failed"):
            await introduced(daemon.channel)
