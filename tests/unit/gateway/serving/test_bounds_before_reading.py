"""What is read, and what is open, of callers who are not known and of each tenant, is bounded."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import DeadlineExceeded, Overloaded
from gateway.serving.incoming import Reads
from gateway.serving.limits import AnonymousConnections, Budget


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_that_sends_no_request_gives_its_place_to_the_next_that_waits() -> None:
    reads, never = Reads(each=1, in_all=2, timeout_s=0.05), asyncio.Event()

    async def comes() -> str:
        return "here"

    stalled = asyncio.create_task(reads.read("a", never.wait))
    await _settle()
    waits = asyncio.create_task(reads.read("a", comes))
    await _settle()
    assert await reads.read("b", comes) == "here"
    assert not waits.done()
    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await stalled
    assert await waits == "here"


async def test_no_more_are_read_at_once_than_all_may_have_together() -> None:
    reads, may = Reads(each=2, in_all=3), asyncio.Event()
    reading = 0

    async def read() -> None:
        nonlocal reading
        reading += 1
        await may.wait()
        reading -= 1

    tasks = [asyncio.create_task(reads.read(whose, read)) for whose in ("a", "a", "a", "b", "b")]
    await _settle()
    assert reading == 3
    may.set()
    await asyncio.gather(*tasks)


def test_calls_of_strangers_are_bounded_by_connection_address_and_in_all() -> None:
    strangers = AnonymousConnections(of_connection=1, of_host=2, in_all=3)
    first = strangers.one("ipv4:10.0.0.1:1")
    with pytest.raises(Overloaded, match="on this connection"):
        strangers.one("ipv4:10.0.0.1:1")
    strangers.one("ipv4:10.0.0.1:2")
    with pytest.raises(Overloaded, match="from this address"):
        strangers.one("ipv4:10.0.0.1:3")
    strangers.one("ipv4:10.0.0.2:1")
    with pytest.raises(Overloaded, match="on this gateway"):
        strangers.one("ipv4:10.0.0.3:1")
    first.close()
    first.close()
    strangers.one("ipv4:10.0.0.3:1")


async def test_a_stream_waits_for_room_that_its_tenant_takes_up_and_another_tenant_does_not() -> None:
    budget = Budget(of_tenant=100, in_all=1000)
    await budget.take("a", 90)
    waits = asyncio.create_task(budget.take("a", 50))
    gone = asyncio.create_task(budget.take("a", 50))
    await _settle()
    await budget.take("b", 90)
    assert not waits.done()
    gone.cancel()
    budget.add("a", -90)
    await waits
    await asyncio.gather(gone, return_exceptions=True)
    budget.add("a", -50)
    budget.add("b", -90)
    assert budget.in_all == 0


async def test_a_message_larger_than_the_bound_is_let_in_alone() -> None:
    budget = Budget(of_tenant=100, in_all=100)
    await budget.take("a", 500)
    assert not budget.fits("a", 1)
    assert budget.fits("b", 1000)
