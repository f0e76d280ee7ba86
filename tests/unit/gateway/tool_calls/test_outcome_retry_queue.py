"""Which outcomes are lost when more wait for the database than there are places for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from gateway.errors import Unavailable
from gateway.tool_calls import outcome_retry_queue
from gateway.tool_calls.outcome_retry_queue import OutcomeRetryQueue, UnrecordedCall

PLACES, UNEXECUTED_PLACES = 100, 10


class Waiting:
    """Outcomes for a database that accepts none until `accepts` is set; `written` lists the calls in order."""

    def __init__(self) -> None:
        self.queue = OutcomeRetryQueue()
        self.accepts = asyncio.Event()
        self.written: list[str] = []

    def add(self, ids: Iterable[str], *, executed: bool, once_for: str | None = None) -> None:
        """Add calls, whose ids begin with the name of their tenant."""
        for call_id in ids:

            async def write(call_id: str = call_id) -> None:
                await self.accepts.wait()
                self.written.append(call_id)

            tenant = call_id.partition("-")[0]
            self.queue.add(UnrecordedCall(call_id, executed=executed), write, tenant=tenant, once_for=once_for)

    async def all_written(self) -> list[str]:
        self.accepts.set()
        await self.queue.written()
        return self.written


def ids(tenant: str, count: int, kind: str = "ran") -> list[str]:
    return [f"{tenant}-{kind}-{number}" for number in range(count)]


@pytest.fixture
async def waiting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Waiting]:
    monkeypatch.setattr(outcome_retry_queue, "_LIMIT", PLACES)
    monkeypatch.setattr(outcome_retry_queue, "_UNEXECUTED_LIMIT", UNEXECUTED_PLACES)
    made = Waiting()
    yield made
    await made.all_written()


async def test_calls_that_did_not_execute_take_a_tenth_of_the_places(waiting: Waiting) -> None:
    waiting.add(ids("noisy", PLACES + 1, "denied"), executed=False)
    waiting.add(["quiet-ran"], executed=True)
    with pytest.raises(Unavailable, match="its result is withheld"):
        waiting.queue.refuse("quiet-ran")
    assert await waiting.all_written() == [*ids("noisy", UNEXECUTED_PLACES, "denied"), "quiet-ran"]


async def test_calls_that_did_not_execute_are_lost_before_those_that_did(waiting: Waiting) -> None:
    waiting.add(ids("noisy", UNEXECUTED_PLACES, "denied"), executed=False)
    waiting.add(ids("quiet", PLACES), executed=True)
    assert await waiting.all_written() == ids("quiet", PLACES)


@pytest.mark.parametrize("executed, places", [(True, PLACES), (False, UNEXECUTED_PLACES)])
async def test_a_tenant_with_more_than_others_loses_its_newest_for_them(
    waiting: Waiting, executed: bool, places: int
) -> None:
    waiting.add(ids("noisy", places), executed=executed)
    waiting.add(ids("quiet", 2), executed=executed)
    waiting.add(["noisy-more"], executed=executed)
    assert await waiting.all_written() == [*ids("noisy", places - 2), *ids("quiet", 2)]


async def test_tenants_share_the_places_equally_while_all_need_them(waiting: Waiting) -> None:
    for tenant in ("a", "b", "c", "d"):
        waiting.add(ids(tenant, PLACES), executed=True)
    tenants = [call_id.partition("-")[0] for call_id in await waiting.all_written()]
    assert [tenants.count(tenant) for tenant in ("a", "b", "c", "d")] == [PLACES // 4] * 4


async def test_an_attempt_that_was_lost_is_queued_again(waiting: Waiting) -> None:
    waiting.add(ids("a", UNEXECUTED_PLACES), executed=False)
    waiting.add(["a-first"], executed=False, once_for="r1")
    waiting.accepts.set()
    await waiting.queue.written()
    waiting.add(["a-second", "a-third"], executed=False, once_for="r1")
    assert await waiting.all_written() == [*ids("a", UNEXECUTED_PLACES), "a-second"]


def test_a_call_whose_record_is_gone_may_be_of_a_thread_that_was_restored() -> None:
    said = UnrecordedCall("c", executed=True, erased=True).words()
    assert "was deleted or restored while it ran, so its result is withheld" in said
