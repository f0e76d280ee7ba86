"""The gateway's end of the channel, against a daemon that keeps the protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.client.channel import PROTOCOL_VERSION, Channel
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.errors import DaemonLost, NotFound
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Peer, fake_daemon

FILE = pb.Entry(name=b"/workspace/a", type=pb.ENTRY_TYPE_FILE, size_bytes=3)


async def describe(request: pb.Request, peer: Peer) -> None:
    await peer.reply(entry=FILE)


async def test_calls_that_follow_each_other_share_one_connection(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, describe) as daemon:
        for _ in range(3):
            assert (await RemoteFS(daemon.channel).stat("/workspace/a")).size_bytes == 3
        assert daemon.connections == 1


async def test_calls_at_the_same_time_each_have_a_connection(tmp_path: Path) -> None:
    everybody = asyncio.Barrier(3)

    async def answer(request: pb.Request, peer: Peer) -> None:
        await everybody.wait()
        await peer.reply(entry=FILE)

    async with fake_daemon(tmp_path, answer) as daemon:
        await asyncio.gather(*(RemoteFS(daemon.channel).stat("/workspace/a") for _ in range(3)))
        assert daemon.connections == 3


async def test_a_cancelled_call_closes_its_connection_and_the_channel_lives_on(tmp_path: Path) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        if request.HasField("stat"):
            await peer.reply(entry=FILE)
            return
        asked.set()
        await peer.hung_up()
        closed.set()

    async with fake_daemon(tmp_path, answer) as daemon:
        files = RemoteFS(daemon.channel)
        waiting = asyncio.create_task(files.ls("/workspace"))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(closed.wait(), 5)
        assert (await files.stat("/workspace/a")).type == "file"


async def test_a_connection_that_the_daemon_closed_while_idle_is_not_used_again(tmp_path: Path) -> None:
    async def answer_once(request: pb.Request, peer: Peer) -> None:
        await peer.reply(entry=FILE)
        raise OSError("hang up")

    async with fake_daemon(tmp_path, answer_once) as daemon:
        for count in range(1, 4):
            await RemoteFS(daemon.channel).stat("/workspace/a")
            assert daemon.connections == count


async def test_a_failed_call_is_an_error_of_its_kind_and_not_a_lost_daemon(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(failure=pb.Failure(kind=pb.FAILURE_KIND_NOT_FOUND, message="/workspace/a is not there"))

    async with fake_daemon(tmp_path, answer) as daemon:
        with pytest.raises(NotFound, match="is not there"):
            await RemoteFS(daemon.channel).stat("/workspace/a")
        assert daemon.channel.lost is None


async def test_a_daemon_that_is_gone_makes_every_later_call_fail_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
    channel = Channel(UnixAddress(tmp_path))
    for _ in range(2):
        with pytest.raises(DaemonLost, match="gone"):
            await RemoteFS(channel).stat("/workspace/a")
    channel.close()


async def test_a_directory_whose_path_is_longer_than_a_socket_address_is_no_trouble(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    short = tmp_path / "s"
    short.symlink_to(directory)
    async with fake_daemon(short, describe):
        channel = Channel(UnixAddress(directory))
        assert (await RemoteFS(channel).stat("/workspace/a")).type == "file"
        channel.close()


async def test_a_closed_channel_lets_go_of_its_descriptors(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, describe) as daemon:
        channel = Channel(UnixAddress(tmp_path))
        before = len(list(Path("/proc/self/fd").iterdir()))
        await RemoteFS(channel).stat("/workspace/a")
        assert daemon.connections == 1
        channel.close()
        # The server's end may still be open: it is another descriptor of this process.
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
        with pytest.raises(DaemonLost, match="removed"):
            await RemoteFS(channel).stat("/workspace/a")


async def test_an_upload_that_is_refused_half_way_ends_with_the_refusal(tmp_path: Path) -> None:
    async def full(request: pb.Request, peer: Peer) -> None:
        await peer.input()
        await peer.reply(failure=pb.Failure(kind=pb.FAILURE_KIND_NO_SPACE, message="no space is left"))
        await peer.hung_up()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 262144

    async with fake_daemon(tmp_path, full) as daemon:
        with pytest.raises(OSError, match="no space"):
            await asyncio.wait_for(RemoteFS(daemon.channel).write("/workspace/a", endless()), 10)
        assert daemon.channel.lost is None


async def test_an_upload_whose_source_fails_raises_the_source_s_error(tmp_path: Path) -> None:
    async def swallow(request: pb.Request, peer: Peer) -> None:
        await peer.hung_up()

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise TimeoutError("the client went away")

    async with fake_daemon(tmp_path, swallow) as daemon:
        with pytest.raises(TimeoutError, match="client went away"):
            await RemoteFS(daemon.channel).write("/workspace/a", broken())
        assert daemon.channel.lost is None


async def test_hello_brings_the_build_and_the_posture(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        assert request.hello.protocol_version == PROTOCOL_VERSION
        posture = pb.Posture(tool_uid=5)
        await peer.reply(hello=pb.HelloReply(protocol_version=PROTOCOL_VERSION, posture=posture, build="ab"))

    async with fake_daemon(tmp_path, answer) as daemon:
        hello = await daemon.channel.hello(timeout_s=5)
        assert (hello.build, hello.posture.tool_uid) == ("ab", 5)


async def test_another_protocol_version_ends_the_channel(tmp_path: Path) -> None:
    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(hello=pb.HelloReply(protocol_version=PROTOCOL_VERSION + 1))

    async with fake_daemon(tmp_path, answer) as daemon:
        with pytest.raises(DaemonLost, match="protocol version 1; rebuild"):
            await daemon.channel.hello(timeout_s=5)
        assert daemon.channel.lost is not None
