"""Approvals that are not answered in time are in the audit, once, and a call says why it was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import select

from gateway.storage.database import Database
from gateway.storage.tables import audit_records
from tests.unit.gateway.approvals.test_approvals import ACME, Clock, Desk
from tests.unit.gateway.runs.test_waiting_runs import Host, World, a_policy, host, world

__all__ = ["host", "world"]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def _reported(database: Database, kind: str) -> list[Any]:
    query = select(audit_records).where(audit_records.c.kind == kind).order_by(audit_records.c.sequence)
    return list(await database.rows(query))


async def test_an_unanswered_approval_is_recorded_once_with_the_time_it_expired(database: Database) -> None:
    desk = Desk(database, Clock())
    approval_id = await desk.ask()
    asked = await desk.approvals.get(ACME, approval_id)
    desk.clock.pass_s(3600)
    # Two gateways notice it at the same time, one of them for all tenants.
    await asyncio.gather(desk.store.expire("acme"), desk.store.expire())
    assert (await desk.approvals.get(ACME, approval_id)).status == "expired"
    (record,) = await _reported(database, "approval_resolved")
    assert (record.outcome, record.verdict, record.actor, record.rule) == ("expired", "deny", "gateway", "close-call")
    assert (record.thread, record.call_id, record.at_us) == ("t", asked.call_id, asked.expires_us)
    assert json.loads(record.details) == {"approval_id": approval_id}


async def test_another_tenants_approvals_are_left_alone(database: Database) -> None:
    desk = Desk(database, Clock())
    await desk.ask()
    desk.clock.pass_s(3600)
    await desk.store.expire("beta")
    assert await _reported(database, "approval_resolved") == []


async def test_a_gateway_notices_it_without_a_caller_too(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    desk = Desk(world.database, Clock())  # its clock is long past for the gateway
    await desk.ask()
    async with asyncio.timeout(30):
        # The gateway's first look may have been before the question.
        gateway.waiting._expired_s = float("-inf")
        while not await _reported(world.database, "approval_resolved"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", ["denied", "expired"])
async def test_a_runs_call_says_whether_it_was_refused_or_not_answered(
    world: World, host: Callable[..., Host], answer: str
) -> None:
    world.put_in_force("asks", a_policy(approval_s=600 if answer == "denied" else 0.2))
    gateway = host()
    run = await gateway.start()
    if answer == "denied":
        await gateway.status(run, "waiting")
        await gateway.answer((await gateway.pending(run))[0], "deny")
    await gateway.status(run, "completed")
    asked, blocked = await _reported(world.database, "tool_call")
    (resolved,) = await _reported(world.database, "approval_resolved")
    assert (asked.verdict, asked.outcome, asked.rule) == ("ask", "waiting", "looked-at")
    assert (blocked.verdict, blocked.outcome) == ("deny", "blocked")
    assert (asked.call_id, asked.arguments_digest) == (blocked.call_id, blocked.arguments_digest)
    assert (json.loads(blocked.details)["approval"], resolved.outcome) == (answer, answer)
    assert {json.loads(one.details)["approval_id"] for one in (asked, blocked, resolved)} == {
        json.loads(asked.details)["approval_id"]
    }
