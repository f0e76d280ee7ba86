"""Writing to a program that reads slowly, not at all, or no more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.programs.process_io import ProcessInput
from sandbox.v1 import channel_pb2 as wire


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[int, ProcessInput]]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    os.set_blocking(read_fd, False)
    stdin = ProcessInput(write_fd)
    with open(read_fd, "rb", buffering=0) as reader:
        yield reader.fileno(), stdin
    stdin.close()


async def test_what_fits_is_written_at_once_and_the_rest_is_reported(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    data = os.urandom(200_000)
    taken = await stdin.write(data, 0)
    assert 0 < taken < len(data)
    assert os.read(fd, len(data)) == data[:taken]
    assert await stdin.write(data[taken : taken + 10], 0) == 10


async def test_a_writer_waits_until_the_pipe_is_writable(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    data = os.urandom(300_000)
    writing = asyncio.ensure_future(stdin.write(data, 60))
    got = b""
    while len(got) < len(data):
        await asyncio.sleep(0)
        with suppress(BlockingIOError):
            got += os.read(fd, 65536)
    assert (got, await writing) == (data, len(data))


async def test_the_next_writer_waits_for_the_first_and_for_no_longer_than_it_wants(
    pipe: tuple[int, ProcessInput],
) -> None:
    _, stdin = pipe
    first = asyncio.ensure_future(stdin.write(bytes(1 << 20), 60))
    await asyncio.sleep(0)
    assert await stdin.write(b"x", 0.01) == 0
    stdin.close()
    assert 0 < await asyncio.wait_for(first, 10) < 1 << 20


async def test_a_reader_that_went_away_is_seen_without_writing(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    assert stdin.is_open()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, fd)
    os.close(null)
    assert not stdin.is_open()
    assert await stdin.write(b"x", 60) == 0


async def test_a_repeated_write_continues_after_what_it_had_written(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    data = os.urandom(100_000)
    taken = await stdin.write(data, 0, request_id="a")
    assert 0 < taken < len(data)
    got = os.read(fd, len(data))
    assert await stdin.write(b"another's", 0, request_id="b") == 9
    got += os.read(fd, len(data))
    for _ in range(3):
        assert await stdin.write(data, 60, request_id="a") == len(data)
    got += os.read(fd, len(data))
    assert got == data[:taken] + b"another's" + data[taken:]
    assert stdin.taken_bytes == len(got)
    with pytest.raises(Fault, match="another write"):
        await stdin.write(b"short", 60, request_id="a")


async def test_an_attempt_waits_for_the_one_before_it_and_writes_nothing_twice(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    data = os.urandom(200_000)
    attempts = [asyncio.ensure_future(stdin.write(data, 60, request_id="a")) for _ in range(3)]
    got = b""
    while len(got) < len(data):
        await asyncio.sleep(0)
        with suppress(BlockingIOError):
            got += os.read(fd, 65536)
    assert await asyncio.gather(*attempts) == [len(data)] * 3
    assert (got, stdin.taken_bytes) == (data, len(data))


async def test_by_its_offset_what_was_taken_is_left_out_and_a_gap_is_refused(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    assert await stdin.write(b"abc", 60, offset=0) == 3
    assert await stdin.write(b"abc", 60, offset=0) == 3
    assert await stdin.write(b"bcde", 60, offset=1) == 4
    assert await stdin.write(b"", 60, offset=2) == 0
    with pytest.raises(Fault) as gap:
        await stdin.write(b"x", 60, offset=6)
    assert (gap.value.kind, gap.value.taken_bytes) == (wire.FAILURE_KIND_INPUT_GAP, 5)
    assert (os.read(fd, 100), stdin.taken_bytes) == (b"abcde", 5)


async def test_so_many_writes_are_remembered_and_no_more(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    for number in range(65):
        assert await stdin.write(b"x", 60, request_id=str(number)) == 1
    assert (await stdin.write(b"x", 60, request_id="1"), stdin.taken_bytes) == (1, 65)
    assert (await stdin.write(b"x", 60, request_id="0"), stdin.taken_bytes) == (1, 66)
    assert os.read(fd, 100) == b"x" * 66
