"""Look-ups in threads: no tenant waits for another tenant's name server."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from gateway.network.lookups import Lookups
from gateway.support.current_tenant import CURRENT_TENANT


class NameServer:
    """Answers names at once, and names that begin with "slow" when it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()
        self.stalled = threading.Semaphore(0)

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.stalled.release()
            assert self.let_go.wait(60)
        return ["1.1.1.1"]


async def test_localhost_is_found_and_a_name_that_is_none_is_an_error() -> None:
    assert set(await Lookups()("localhost", 80)) <= {"127.0.0.1", "::1"}
    with pytest.raises((OSError, UnicodeError)):
        await Lookups()("a..b", 80)
    with pytest.raises(socket.gaierror):
        await Lookups()("name.invalid", 80)


async def test_a_tenant_whose_look_ups_stall_holds_up_no_other() -> None:
    server = NameServer()
    lookups = Lookups(server, places=3, of_one=2)

    async def of(tenant: str, host: str) -> list[str]:
        CURRENT_TENANT.set(tenant)
        return await lookups(host, 80)

    stalled = [asyncio.create_task(of("a", f"slow{place}")) for place in range(4)]
    for _ in range(2):
        assert await asyncio.to_thread(server.stalled.acquire, timeout=60)
    assert await of("b", "quick") == ["1.1.1.1"]
    assert len(server.asked) == 3
    server.let_go.set()
    assert await asyncio.gather(*stalled) == [["1.1.1.1"]] * 4


async def test_a_caller_that_leaves_does_so_at_once_and_its_thread_keeps_the_place() -> None:
    server = NameServer()
    lookups = Lookups(server, places=1, of_one=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lookups("slow", 80)
    waiting = asyncio.create_task(lookups("quick", 80))
    left = asyncio.create_task(lookups("never", 80))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    assert server.asked == ["slow"]
    server.let_go.set()
    assert await waiting == ["1.1.1.1"]
    assert server.asked == ["slow", "quick"]
