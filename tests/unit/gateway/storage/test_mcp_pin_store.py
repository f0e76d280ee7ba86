"""Pins in the database: what was seen is not accepted, and what is accepted is what was listed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.storage.database import Database
from gateway.storage.mcp_pin_store import FIRST_USE, McpPins, McpPinStore

SEEN = McpPins("acme", "default", "notes", seen="[1]", seen_digest="one", left_out="x: no")
OTHER = McpPins("acme", "default", "notes", seen="[2]", seen_digest="two")


@pytest.fixture
async def pins(database_url: str) -> AsyncIterator[McpPinStore]:
    database = await Database.open(database_url)
    yield McpPinStore(database)
    await database.close()


async def test_what_was_seen_is_offered_once_it_is_accepted_and_stays_as_it_was(pins: McpPinStore) -> None:
    seen = await pins.saw(SEEN, first_use=False)
    assert (seen.status, seen.pinned, seen.left_out) == ("new", "", "x: no")
    accepted = await pins.accept(SEEN, "alice")
    assert accepted is not None
    assert (accepted.status, accepted.pinned, accepted.pinned_by) == ("pinned", "[1]", "alice")
    changed = await pins.saw(OTHER, first_use=True)
    assert (changed.status, changed.pinned, changed.seen) == ("changed", "[1]", "[2]")
    late = await pins.accept(SEEN, "alice")
    assert late is not None
    assert (late.seen_digest, late.pinned) == ("two", "[1]")
    assert await pins.of("acme") == [changed]


async def test_first_use_accepts_what_was_never_seen_before_and_no_change(pins: McpPinStore) -> None:
    assert (await pins.saw(SEEN, first_use=True)).pinned_by == FIRST_USE
    assert (await pins.saw(OTHER, first_use=True)).status == "changed"
    assert await pins.remove(SEEN, "alice") is not None
    assert await pins.remove(SEEN, "alice") is None
    assert await pins.of("acme") == []
    # What was seen while the operator was to accept it is no first use later.
    await pins.saw(SEEN, first_use=False)
    assert (await pins.saw(SEEN, first_use=True)).status == "new"


async def test_tenants_and_agents_have_their_own(pins: McpPinStore) -> None:
    await pins.saw(SEEN, first_use=True)
    await pins.saw(McpPins("acme", "other", "notes", seen_digest="x"), first_use=False)
    assert await pins.of("globex") == []
    assert [one.agent for one in await pins.of("acme")] == ["default", "other"]
    assert [one.agent for one in await pins.of("acme", "other")] == ["other"]
    assert await pins.accept(McpPins("globex", "default", "notes", seen_digest="one"), "eve") is None
