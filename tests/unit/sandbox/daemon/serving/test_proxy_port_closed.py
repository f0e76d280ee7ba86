"""A proxy port that is closed leaves nothing behind, not even in the event loop."""

from __future__ import annotations

import asyncio
import os

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.serving.proxy_port import ProxyPort


async def test_a_descriptor_with_the_number_of_the_closed_listener_is_watched() -> None:
    proxy, loop = ProxyPort(), asyncio.get_running_loop()
    proxy.open()
    waiting = asyncio.create_task(proxy.accept())
    await asyncio.sleep(0.01)
    proxy.close()
    reading, writing = os.pipe()  # in the same step, as a call that was sent right after the order to close
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(reading, lambda: readable.done() or readable.set_result(None))
    os.write(writing, b"x")
    async with asyncio.timeout(10):
        await readable
    loop.remove_reader(reading)
    os.close(reading)
    os.close(writing)
    with pytest.raises(Fault, match="not open"):
        await waiting
