"""Writing to a program that reads slowly, not at all, or no more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sandbox.daemon.process_input import ProcessInput


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[int, ProcessInput]]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    os.set_blocking(read_fd, False)
    stdin = ProcessInput(write_fd)
    with open(read_fd, "rb", buffering=0) as reader:
        yield reader.fileno(), stdin
    stdin.close()


async def test_what_fits_is_taken_at_once_and_the_rest_is_told(pipe: tuple[int, ProcessInput]) -> None:
    fd, stdin = pipe
    data = os.urandom(200_000)
    taken = await stdin.write(data, 0)
    assert 0 < taken < len(data)
    assert os.read(fd, len(data)) == data[:taken]
    assert await stdin.write(data[taken : taken + 10], 0) == 10


async def test_a_writer_waits_for_room(pipe: tuple[int, ProcessInput]) -> None:
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
