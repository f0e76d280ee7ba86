"""The sandboxes of E2B's SDKs, on real databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.storage.audit_reader import AuditFilter, AuditReader
from gateway.storage.database import Database
from gateway.storage.e2b_store import PAUSED, RUNNING, E2bSandbox, E2bStore
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.store import Store

_NOW_US = 1000
_BY = "alk_abc"
_BOTH = (RUNNING, PAUSED)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def store(database: Database) -> E2bStore:
    store = E2bStore(database, lambda: _NOW_US)
    for number, tenant in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
        await Store(database).thread(tenant, f"e2b-{number}")
        assert await store.add(_sandbox(number, tenant))
    return store


def _sandbox(number: int, tenant: str, **changed: Any) -> E2bSandbox:
    fields: dict[str, Any] = {
        "state": RUNNING,
        "ends_us": 2000,
        "options": {"n": number},
        "key_ids": ("k",),
        "secret": "s",
    }
    return E2bSandbox(
        id=str(number),
        tenant=tenant,
        thread=f"e2b-{number}",
        created_us=number,
        **{**fields, **changed},
    )


async def _page(store: E2bStore, tenant: str = "a", **asked: Any) -> list[str]:
    usual: dict[str, Any] = {"states": _BOTH, "ascending": True, "since_us": 0, "after": None, "limit": 9}
    return [one.id for one in await store.page(tenant, **{**usual, **asked})]


async def test_a_sandbox_is_read_as_it_was_stored_and_needs_a_thread(store: E2bStore) -> None:
    assert await store.get("1") == _sandbox(1, "a")
    assert await store.get("none") is None
    assert not await store.add(_sandbox(9, "a"))


async def test_a_page_is_of_one_tenant_and_in_either_order(store: E2bStore) -> None:
    assert await _page(store) == ["1", "2", "4"]
    assert await _page(store, "b") == ["3"]
    assert await _page(store, ascending=False, limit=2) == ["4", "2"]
    assert await _page(store, ascending=False, after=(2, "2")) == ["1"]
    assert await _page(store, after=(1, "1"), since_us=3) == ["4"]
    await store.pause("2")
    assert await _page(store, states=(PAUSED,)) == ["2"]


async def test_pausing_and_running_happen_once(store: E2bStore) -> None:
    assert [await store.pause("1"), await store.pause("1")] == [True, False]
    one = _sandbox(1, "a")
    assert not await store.set_end(one, 3000, _BY)
    assert [await store.run("1", 5000), await store.run("1", 6000)] == [True, False]
    assert await store.set_end(one, 4000, _BY, later_only=True) is False
    assert await store.set_end(one, 6000, _BY, later_only=True)
    found = await store.get("1")
    assert found is not None
    assert (found.state, found.ends_us) == (RUNNING, 6000)


async def test_what_is_due_is_taken_by_one_and_seen_no_more_once_it_ends(store: E2bStore) -> None:
    assert await store.due(9) == []
    await store.set_end(_sandbox(2, "a"), 900, _BY)
    (due,) = await store.due(9)
    assert [await store.take_due(due, 9000), await store.take_due(due, 9000)] == [True, False]
    assert await store.due(9) == []
    await store.end("2", 950)
    assert [await store.get("2"), await _page(store)] == [None, ["1", "4"]]
    assert [one.id for one in await store.due(9)] == ["2"]
    assert await store.due(9, but_of=["a"]) == []


async def test_a_second_sandbox_with_an_id_is_not_stored(store: E2bStore) -> None:
    assert not await store.add(_sandbox(1, "a", secret="other"))
    assert await store.get("1") == _sandbox(1, "a")


async def test_the_keys_that_came_last_hold_tokens(store: E2bStore) -> None:
    for number in range(8):
        await store.hold(_sandbox(1, "a"), f"k{number}", _BY)
    await store.hold(_sandbox(1, "a"), "k0", _BY)
    found = await store.get("1")
    assert found is not None
    assert found.key_ids == ("k1", "k2", "k3", "k4", "k5", "k6", "k7", "k0")


async def test_an_option_is_changed_alone_and_read_by_the_thread(store: E2bStore, database: Database) -> None:
    await store.set_option(_sandbox(1, "a"), "egress", {"deny": ["x"]}, _BY)
    thread = await Store(database).thread("a", "e2b-1")
    assert await store.options_of(thread.id) == {"n": 1, "egress": {"deny": ["x"]}}
    assert await store.options_of("none") is None


async def test_what_a_caller_changes_is_on_record_and_what_stays_is_not(store: E2bStore, database: Database) -> None:
    one = _sandbox(1, "a")
    await store.set_end(one, 3000, _BY)
    await store.set_end(one, 2500, _BY, later_only=True)
    await store.hold(one, "k", _BY)
    await store.hold(one, "other", _BY)
    await store.set_option(one, "egress", None, _BY)
    await store.set_option(_sandbox(9, "a"), "egress", None, _BY)
    records = await AuditReader(database).after("a", AuditFilter(), sequence=0, until=9)
    assert {(found.kind, found.actor, found.thread) for found in records} == {("e2b_sandbox_changed", _BY, "e2b-1")}
    said = [json.loads(found.details) for found in records]
    assert said == [{"ends_us": 3000}, {"token_for": "other"}, {"egress": None}]


async def test_a_sandbox_goes_with_its_thread(store: E2bStore, database: Database) -> None:
    erasure = ErasureStore(database)
    await erasure.begin("a", "e2b-1", "del_1")
    removed = await erasure.remove_thread("a", "e2b-1", "test", "del_1")
    assert removed["e2b_sandboxes"] == 1
    assert await store.get("1") is None
