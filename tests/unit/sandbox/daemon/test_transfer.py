"""Bytes on their way: frames that are packed and taken apart by hand mean what protobuf says of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sandbox.client.channel import Connection
from sandbox.daemon.files import read_files
from sandbox.daemon.files.slow_work import work_in_thread
from sandbox.daemon.frames import DATA_LIMIT_BYTES, MAX_FRAME_BYTES, BrokenFrame, FrameSocket, InputStream, send_around
from sandbox.errors import DaemonLost
from sandbox.v1 import channel_pb2 as pb
from tests.examples import examples

SIZES = [1, 2, 125, 126, 127, 128, 129, 16_380, 16_384, 65_536, 512 * 1024, DATA_LIMIT_BYTES]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Connection, FrameSocket]]:
    """The gateway's end and the daemon's."""
    one, other = socket.socketpair()
    for end in (one, other):
        end.setblocking(False)
    with one, other:
        yield Connection(one), FrameSocket(other)


async def pieces_of(stream: InputStream) -> bytes:
    data = b""
    while (piece := await stream.read_piece()) is not None:
        assert piece
        data += piece
    return data


@pytest.mark.parametrize("size", SIZES)
async def test_data_of_any_size_arrives_and_the_next_frame_after_it(
    ends: tuple[Connection, FrameSocket], size: int
) -> None:
    gateway, daemon = ends
    data = os.urandom(size)

    async def send() -> None:
        await gateway.send_data(memoryview(data))
        await gateway.send(pb.Input(data=b"by protobuf"))
        await gateway.send(pb.Input(end=True))
        await gateway.send(pb.Request(stat=pb.StatRequest(path="/next")))

    sending = asyncio.create_task(send())
    assert await pieces_of(InputStream(daemon)) == data + b"by protobuf"
    frame = await daemon.read()
    assert frame is not None
    assert pb.Request.FromString(frame).stat.path == "/next"
    await sending


@examples(200)
@given(
    messages=st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    cuts=st.lists(st.integers(min_value=1, max_value=400), max_size=12),
)
def test_input_means_the_same_however_it_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    async def check() -> None:
        one, other = socket.socketpair()
        with one, other:
            other.setblocking(False)
            frames = [pb.Input(data=data).SerializeToString() for data in messages]
            frames.append(pb.Input(end=True).SerializeToString())
            stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
            reading = asyncio.create_task(pieces_of(InputStream(FrameSocket(other))))
            for cut in cuts:
                one.sendall(stream[:cut])
                stream = stream[cut:]
                await asyncio.sleep(0)
            one.sendall(stream)
            assert await reading == b"".join(messages)

    asyncio.run(check())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\x0fabc",
        b"\x0a\x00\x12",
        pb.Input(data=b"x" * (DATA_LIMIT_BYTES + 1)).SerializeToString(),
        b"\x12\x03abc",
    ],
    ids=["empty", "too short", "lying", "cut tag", "too large", "another field"],
)
async def test_input_that_is_none_ends_the_connection(ends: tuple[Connection, FrameSocket], frame: bytes) -> None:
    gateway, daemon = ends
    sending = asyncio.create_task(
        asyncio.get_running_loop().sock_sendall(gateway._socket, len(frame).to_bytes(4, "big") + frame)
    )
    with pytest.raises((BrokenFrame, DecodeError)):
        await pieces_of(InputStream(daemon))
    sending.cancel()


@pytest.mark.parametrize("size", SIZES)
async def test_a_chunk_packed_by_hand_is_the_one_that_protobuf_packs(
    ends: tuple[Connection, FrameSocket], size: int
) -> None:
    gateway, daemon = ends
    data = os.urandom(size)
    packed = pb.Reply(chunk=pb.Chunk(data=data)).SerializeToString()
    assert read_files._chunk_head(size) + data == packed
    sending = asyncio.create_task(send_around(daemon.connection, read_files._chunk_head(size), memoryview(data)))
    assert await gateway.receive_piece() == data
    await sending
    sending = asyncio.create_task(daemon.send(pb.Reply(read=pb.ReadReply(size_bytes=7))))
    reply = await gateway.receive_piece()
    assert isinstance(reply, pb.Reply)
    assert reply.read.size_bytes == 7
    await sending


@pytest.mark.parametrize(
    "frame",
    [b"\x1a\x04\x0a\x05abc", b"\x1a\xff\xff\xff\xff\x0f", b"\x1a\x05\x0a\x03ab", b"\x1a"],
    ids=["longer than its frame", "endless", "cut", "a tag alone"],
)
async def test_a_chunk_that_lies_about_its_length_is_a_lost_daemon(
    ends: tuple[Connection, FrameSocket], frame: bytes
) -> None:
    gateway, daemon = ends
    daemon.connection.sendall(len(frame).to_bytes(4, "big") + frame)
    with pytest.raises(DaemonLost, match="no Reply"):
        await gateway.receive_piece()


async def test_a_connection_keeps_no_frame_between_calls(ends: tuple[Connection, FrameSocket]) -> None:
    gateway, daemon = ends
    large = pb.Reply(read=pb.ReadReply(data=b"x" * (MAX_FRAME_BYTES - 100)))
    sending = asyncio.create_task(daemon.send(large))
    assert len((await gateway.receive()).read.data) == MAX_FRAME_BYTES - 100
    await sending
    assert gateway._frames.buffered_bytes == 0


async def test_a_file_that_becomes_shorter_ends_the_stream_where_it_ends(
    ends: tuple[Connection, FrameSocket], tmp_path: Path
) -> None:
    gateway, daemon = ends
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    reading = asyncio.create_task(read_files.read(pb.ReadRequest(path=f"{tmp_path}/a"), daemon))
    first = await gateway.receive_piece()
    os.truncate(tmp_path / "a", len(first))
    while isinstance(await gateway.receive_piece(), bytes):
        pass
    await reading


async def test_work_in_a_thread_is_finished_before_its_cancelled_caller_continues() -> None:
    release, out = os.pipe()
    task = asyncio.create_task(work_in_thread(lambda: os.read(release, 1)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    os.write(out, b"x")
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(FileNotFoundError):
        await work_in_thread(lambda: os.stat("/no/such/file"))
    for fd in (release, out):
        os.close(fd)
