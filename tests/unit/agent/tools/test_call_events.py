"""Live output: filters, and the event loop while they work."""

from __future__ import annotations

import asyncio

from agent.filesystem import OutputStream
from agent.tools.call_events import LiveOutput
from tests.turns import turns


class Waits:
    """Waits before the first piece that it passes on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def feed(self, stream: OutputStream, data: bytes) -> bytes:
        await self.go_on.wait()
        return data

    async def flush(self, stream: OutputStream, *, cut: bool) -> bytes:
        return b""


async def test_the_event_loop_runs_while_what_waited_for_a_filter_is_passed_on() -> None:
    shown: list[tuple[OutputStream, bytes]] = []
    waits = Waits()
    streams: tuple[OutputStream, OutputStream] = ("stdout", "stderr")
    pieces = [(streams[place % 2], b"x") for place in range(1000)]
    async with turns() as counted:

        def show(stream: OutputStream, data: bytes) -> None:
            counted.seen()
            shown.append((stream, data))

        live = LiveOutput([waits], [show])
        for stream, data in pieces:
            live(stream, data)
        await asyncio.sleep(0)
        waits.go_on.set()
        await live.end(cut=False)
    assert shown == pieces
    assert counted.most <= 2
