"""Sessions with a program of the sandbox: what its output may cost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest

from gateway.mcp_servers.process_transport import ServerProcess, process_transport
from gateway.mcp_servers.session import ServerFailed, Session
from gateway.mcp_servers.traffic import Traffic


@dataclass(frozen=True)
class Page:
    offset: int
    data: bytes
    end: bool = False


class Sandbox:
    """A sandbox with a program that has written one page."""

    def __init__(self, written: bytes) -> None:
        self._written = written

    async def read_process(self, _: str, *, offset: int, wait_s: float) -> Page:
        await asyncio.sleep(0)
        return Page(offset, self._written[offset:], offset >= len(self._written))

    async def write_process(self, *_: Any, **__: Any) -> None:
        """Take the input."""


@pytest.mark.parametrize("line", [b"", b"\r", b"log: started", b"{}"])
async def test_lines_that_are_no_messages_are_counted_and_leave_others_their_turn(line: bytes) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    process = ServerProcess(cast(Any, Sandbox((line + b"\n") * 20_000)), "mcp-notes", 1)
    task = asyncio.create_task(others())
    with pytest.raises(ServerFailed, match="more than 10,000 messages"):
        await Session(partial(process_transport, process), modern_first=False).start(60)
    task.cancel()
    assert turns >= 10_000


async def test_empty_lines_between_messages_are_passed_over() -> None:
    answer = b'{"jsonrpc": "2.0", "id": %d, "error": {"code": -1, "message": "out of order"}}\r\n'
    written = b"\r\n\n".join(answer % number for number in range(4))
    process = ServerProcess(cast(Any, Sandbox(written)), "mcp-notes", 1)
    with pytest.raises(ServerFailed, match="out of order"):
        await Session(partial(process_transport, process), modern_first=False).start(60)


class _Pages:
    """A sandbox with a program that writes a line of one long page, and of many short ones."""

    def __init__(self, long: int, short: int) -> None:
        self._long, self._end = long, long + short

    async def read_process(self, _: str, *, offset: int, wait_s: float) -> Page:
        data = b"\n" if offset == self._end else b"x" if offset else b"x" * self._long
        return Page(offset, b"" if offset > self._end else data, offset > self._end)


async def test_a_long_line_costs_no_more_for_each_page_of_it_than_a_short_one() -> None:
    async def reading_s(long: int) -> float:
        process = ServerProcess(cast(Any, _Pages(long, 4_000)), "mcp-notes", 1)
        traffic = Traffic()
        began_s = time.process_time()
        with traffic.request():
            assert [len(line) async for line in process.lines(traffic)] == [long + 4_000]
        return time.process_time() - began_s

    short_s = await reading_s(1)
    assert await reading_s(7 * 1024 * 1024) < 5 * short_s + 1
