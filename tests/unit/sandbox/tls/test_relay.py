"""A connection through a relay is like one to the daemon's Unix socket: bytes, ends, flow control and hang-ups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.client.channel import Channel
from sandbox.client.remote_fs import RemoteFS
from sandbox.errors import DaemonLost
from sandbox.tls import relay as relay_module
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Peer, fake_daemon
from tests.unit.sandbox.tls.relays import Beside, Raw, relayed, until

MIB = 1024 * 1024
FILE = pb.Entry(name=b"/workspace/a", type=pb.ENTRY_TYPE_FILE, size_bytes=3)


async def describe(request: pb.Request, peer: Peer) -> None:
    await peer.reply(entry=FILE)


class Pair:
    """Both ends of one connection, the gateway's and the daemon's."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self._loop = asyncio.get_running_loop()

    async def send(self, end: socket.socket, data: bytes) -> None:
        await self._loop.sock_sendall(end, data)

    async def all_of(self, end: socket.socket) -> bytes:
        """Return what arrives until the end."""
        received = bytearray()
        async with asyncio.timeout(30):
            while data := await self._loop.sock_recv(end, 65_536):
                received += data
        return bytes(received)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with relayed(tmp_path) as beside:
        with closing(Raw(tmp_path)) as daemon:
            near = await beside.address.open()
            far = await daemon.accept()
            with near, far:
                yield Pair(near, far)


async def test_calls_that_follow_each_other_share_one_connection(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside, fake_daemon(tmp_path, describe) as daemon:
        with closing(beside.channel()) as channel:
            for _ in range(3):
                assert (await RemoteFS(channel).stat("/workspace/a")).size_bytes == 3
            assert daemon.connections == 1


@pytest.mark.parametrize("size", [1, 16 * 1024 - 1, 16 * 1024 + 1, 5 * MIB])
async def test_bytes_arrive_whole_in_both_directions_at_once_and_each_direction_ends_alone(
    pair: Pair, size: int
) -> None:
    there, back = os.urandom(size), os.urandom(size)

    async def say(end: socket.socket, data: bytes) -> None:
        await pair.send(end, data)
        end.shutdown(socket.SHUT_WR)

    _, _, arrived, returned = await asyncio.gather(
        say(pair.near, there), say(pair.far, back), pair.all_of(pair.far), pair.all_of(pair.near)
    )
    assert (arrived, returned) == (there, back)


@pytest.mark.parametrize("first", ["near", "far"])
async def test_after_the_end_of_one_direction_the_other_goes_on(pair: Pair, first: str) -> None:
    one, other = (pair.near, pair.far) if first == "near" else (pair.far, pair.near)
    # Bytes of the other direction are on their way when the end of the first is sent.
    before, after = os.urandom(300_000), os.urandom(3 * MIB)
    sending = asyncio.create_task(pair.send(other, before))
    await pair.send(one, b"last words")
    one.shutdown(socket.SHUT_WR)
    assert await pair.all_of(other) == b"last words"
    await sending

    async def go_on() -> None:
        await pair.send(other, after)
        other.shutdown(socket.SHUT_WR)

    _, received = await asyncio.gather(go_on(), pair.all_of(one))
    assert received == before + after


async def test_what_a_daemon_sends_before_it_hangs_up_arrives(pair: Pair) -> None:
    said = os.urandom(2 * MIB)

    async def say() -> None:
        await pair.send(pair.far, said)
        pair.far.close()

    _, received = await asyncio.gather(say(), pair.all_of(pair.near))
    assert received == said


async def test_what_a_daemon_sends_before_it_hangs_up_arrives_though_it_read_nothing(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                await pair.send(pair.near, bytes(MIB))
    said = os.urandom(150_000)
    await pair.send(pair.far, said)
    pair.far.close()
    await asyncio.sleep(0.2)  # so that all of it is on its way before anybody reads
    received = b""
    # As with a Unix socket, the error that says that bytes were not read comes after the bytes, or the end does.
    with contextlib.suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(pair.near, 65_536):
            received += data
    assert received == said


@pytest.mark.parametrize("end", ["near", "far"])
async def test_who_is_not_read_must_wait_and_goes_on_when_it_is(pair: Pair, end: str) -> None:
    source, target = (pair.near, pair.far) if end == "near" else (pair.far, pair.near)
    loop, sent = asyncio.get_running_loop(), 0
    piece = os.urandom(MIB)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            while True:
                await loop.sock_sendall(source, piece)
                sent += len(piece)
    # The buffers of two Unix sockets and a TCP connection of this machine.
    assert sent < 32 * MIB
    drained = 0
    async with asyncio.timeout(20):
        while drained < sent:
            drained += len(await loop.sock_recv(target, MIB))


async def test_a_gateway_that_goes_away_is_noticed_though_the_daemon_is_not_reading(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            while True:
                await pair.send(pair.near, bytes(MIB))
    pair.near.close()
    # As Hangups of the daemon sees it: both directions are closed, with bytes left to read.
    await _until_hung_up(pair.far)


async def test_a_gateway_that_goes_away_after_it_ended_is_noticed(pair: Pair) -> None:
    pair.near.shutdown(socket.SHUT_WR)
    assert await pair.all_of(pair.far) == b""
    pair.near.close()
    await _until_hung_up(pair.far)


async def test_the_last_bytes_to_a_slow_daemon_that_has_ended_arrive_after_the_gateway_hung_up(pair: Pair) -> None:
    said = os.urandom(3 * MIB)
    pair.far.shutdown(socket.SHUT_WR)
    assert await pair.all_of(pair.near) == b""
    await pair.send(pair.near, said)
    pair.near.close()
    assert await pair.all_of(pair.far) == said


async def _until_hung_up(end: socket.socket) -> None:
    import select

    poller = select.poll()
    poller.register(end, 0)
    await until(lambda: bool(poller.poll(0)))


async def test_a_cancelled_call_is_one_that_the_daemon_sees_hang_up_and_the_channel_lives_on(tmp_path: Path) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        if request.HasField("stat"):
            await peer.reply(entry=FILE)
            return
        asked.set()
        await peer.hung_up()
        closed.set()

    async with relayed(tmp_path) as beside, fake_daemon(tmp_path, answer):
        with closing(beside.channel()) as channel:
            waiting = asyncio.create_task(RemoteFS(channel).ls("/workspace"))
            await asked.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.wait_for(closed.wait(), 10)
            assert (await RemoteFS(channel).stat("/workspace/a")).type == "file"


async def test_a_connection_that_is_cut_as_soon_as_it_is_open_ends_at_both_ends(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside:
        with closing(Raw(tmp_path)) as daemon:
            near = await beside.address.open()
            beside.address.cut()  # before its relay has done anything
            with near, await daemon.accept() as far:
                pair = Pair(near, far)
                async with asyncio.timeout(10):
                    assert (await pair.all_of(near), await pair.all_of(far)) == (b"", b"")


async def test_an_idle_connection_that_was_cut_is_not_used_again(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside, fake_daemon(tmp_path, describe) as daemon:
        with closing(beside.channel()) as channel:
            await RemoteFS(channel).stat("/workspace/a")
            for task in [*beside.relay._established]:
                task.cancel()
            await until(lambda: not beside.address._relays)
            await RemoteFS(channel).stat("/workspace/a")
            assert daemon.connections == 2


async def _cut_after(limit: int, target: tuple[str, int], seen: list[int]) -> asyncio.Server:
    """Return a proxy that resets a connection when the relay has sent `limit` bytes; `seen` gets the bytes of each."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*target)

        async def up() -> None:
            while data := await reader.read(65_536):
                to_there.write(data)

        going = asyncio.ensure_future(up())
        left = limit
        try:
            while left and (data := await there.read(left)):
                writer.write(data)
                await writer.drain()
                left -= len(data)
        except OSError:
            pass
        finally:
            seen.append(limit - left)
            going.cancel()
            for one in (writer, to_there):
                one.transport.abort()

    return await asyncio.start_server(forward, "127.0.0.1", 0)


async def _stat(beside: Beside, limit: int, seen: list[int]) -> str:
    server = await _cut_after(limit, beside.target, seen)
    address = beside.addressed(port=server.sockets[0].getsockname()[1])
    try:
        with closing(Channel(address)) as channel:
            async with asyncio.timeout(10):
                return (await RemoteFS(channel).stat("/workspace/a")).type
    finally:
        server.close()


async def test_wherever_the_connection_is_cut_the_daemon_is_lost_and_nothing_waits_or_stays(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside, fake_daemon(tmp_path, describe):
        seen: list[int] = []
        assert await _stat(beside, 1_000_000, seen) == "file"
        await until(lambda: len(seen) == 1)
        (whole,) = seen
        # Greeting, certificate, the byte that says ready, head and body of the reply: all that the relay sends. The
        # last records only end the connection.
        for limit in [0, 1, 4, 5, 100, 500, *range(900, whole - 60, 37)]:
            with pytest.raises(DaemonLost):
                await _stat(beside, limit, [])


async def test_a_peer_that_hangs_up_without_an_end_is_not_taken_for_one_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def note(stream: object, plain: socket.socket) -> None:
        try:
            await inward(stream, plain)
        except ConnectionResetError:
            ended.set()
            raise

    inward = relay_module._inward
    monkeypatch.setattr(relay_module, "_inward", note)
    async with relayed(tmp_path) as beside:
        with closing(Raw(tmp_path)) as daemon, await beside.address.open() as near:
            far = await daemon.accept()
            for task in [*beside.relay._established]:
                task.cancel()
            await asyncio.wait_for(ended.wait(), 10)
            assert await asyncio.get_running_loop().sock_recv(near, 1) == b""
            far.close()


async def test_a_relay_without_a_daemon_refuses_until_there_is_one(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside:
        with closing(beside.channel()) as channel:
            for _ in range(2):
                with pytest.raises(ConnectionRefusedError, match="no daemon yet"):
                    await channel.connect()
            async with fake_daemon(tmp_path, describe):
                await channel.connect()
                assert (await RemoteFS(channel).stat("/workspace/a")).size_bytes == 3


async def test_a_daemon_that_is_gone_makes_every_later_call_fail_at_once(tmp_path: Path) -> None:
    Raw(tmp_path).close()
    async with relayed(tmp_path) as beside:
        with closing(beside.channel()) as channel:
            for _ in range(2):
                with pytest.raises(DaemonLost, match="no daemon"):
                    await RemoteFS(channel).stat("/workspace/a")


async def test_where_no_relay_listens_a_connection_is_refused_as_by_a_missing_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with relayed(tmp_path) as beside:
        with pytest.raises(ConnectionRefusedError):
            await beside.addressed(port=port).open()


async def test_a_socket_replaced_by_a_link_to_another_is_not_followed(tmp_path: Path) -> None:
    victim, attacker = tmp_path / "victim", tmp_path / "attacker"
    victim.mkdir()
    attacker.mkdir()
    with closing(Raw(victim)) as other:
        (attacker / "daemon.sock").symlink_to(victim / "daemon.sock")
        async with relayed(attacker) as beside:
            with pytest.raises(ConnectionRefusedError):
                await beside.address.open()
        assert other.idle()
