"""Calls without a valid credential are recorded, and a flood of them does not fill the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing
from sqlalchemy import select

from gateway.identity.auth import Denials
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import audit_records


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    yield opened
    await opened.close()


async def _recorded(database: Database, denials: Denials) -> list[dict[str, Any]]:
    await asyncio.gather(*denials._writing)
    rows = await database.rows(select(audit_records).order_by(audit_records.c.sequence))
    assert {(row.tenant, row.kind) for row in rows} <= {("", "denied")}
    return [json.loads(row.details) for row in rows]


async def test_a_flood_from_one_peer_is_recorded_three_times_and_hides_no_other_peer(database: Database) -> None:
    denials = Denials(AuditStore(database), lambda: 0.0)
    for port in range(1000):
        denials.record(f"ipv4:10.0.0.1:{port}", "no key")
    denials.record("ipv4:10.0.0.2:1", "no key")
    recorded = await _recorded(database, denials)
    assert [one["peer"] for one in recorded[:3]] == [f"ipv4:10.0.0.1:{port}" for port in range(3)]
    assert recorded[3:] == [{"peer": "ipv4:10.0.0.2:1", "why": "no key", "omitted_before": 997}]


async def test_a_flood_from_one_ipv6_network_hides_no_other_peer(database: Database) -> None:
    denials = Denials(AuditStore(database), lambda: 0.0)
    for host in range(1000):
        denials.record(f"ipv6:[2001:db8::{host:x}]:1", "no key")
    denials.record("ipv6:[2001:db8:0:1::1]:1", "no key")
    recorded = await _recorded(database, denials)
    assert [one["peer"] for one in recorded[:3]] == [f"ipv6:[2001:db8::{host:x}]:1" for host in range(3)]
    assert recorded[3:] == [{"peer": "ipv6:[2001:db8:0:1::1]:1", "why": "no key", "omitted_before": 997}]


async def test_a_flood_from_many_peers_is_bounded_and_counted_in_the_next_minute(database: Database) -> None:
    now = [0.0]
    denials = Denials(AuditStore(database), lambda: now[0])
    for host in range(200):
        denials.record(f"ipv6:[2001:db8:0:{host:x}::1]:1", "x" * 5000)
    now[0] = 61.0
    denials.record("ipv4:10.0.0.1:1", "no key")
    recorded = await _recorded(database, denials)
    assert len(recorded) == 31
    assert len(recorded[0]["why"]) == 300
    assert recorded[-1]["omitted_before"] == 170


async def test_a_key_that_is_over_is_recorded_beside_a_flood_of_guesses_from_the_same_address(
    database: Database,
) -> None:
    denials = Denials(AuditStore(database), lambda: 0.0)
    for port in range(10):
        denials.record(f"ipv4:10.0.0.1:{port}", "no", {"key_state": "unknown"})
    for port in range(10):
        denials.record(f"ipv4:10.0.0.1:{port}", "no", {"key_state": "revoked", "key_id": "key_1"})
    assert [one["key_state"] for one in await _recorded(database, denials)] == ["unknown"] * 3 + ["revoked"] * 3


async def test_an_audit_that_cannot_be_written_changes_no_answer(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    await database.close()
    denials = Denials(AuditStore(database))
    with structlog.testing.capture_logs() as said:
        denials.record("unix:", "no key")
        await asyncio.gather(*denials._writing)
    assert [line["event"] for line in said] == ["denied", "a denied call is not in the audit"]
