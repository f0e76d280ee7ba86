"""The history of sandboxes, on real databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import update

from gateway.storage.database import Database
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.retention_store import RetentionStore
from gateway.storage.store import Store
from gateway.storage.tables import threads
from gateway.storage.transition_store import NewTransition, TransitionStore


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    for tenant, name in (("a", "1"), ("a", "2"), ("b", "1")):
        await Store(opened).thread(tenant, name)
    yield opened
    await opened.close()


def reported(tenant: str, thread: str, state: str, at_us: int = 1) -> NewTransition:
    return NewTransition(tenant, thread, "s-1", state, "because", at_us)


async def test_a_thread_s_history_is_read_in_pages_the_newest_first_and_is_no_other_tenant_s(
    database: Database,
) -> None:
    store = TransitionStore(database)
    await store.add(
        "E", [reported("a", "1", "creating"), reported("a", "1", "running"), reported("b", "1", "creating")]
    )
    await store.add(
        "E", [replace(reported("a", "2", "creating"), sandbox="s-2"), reported("a", "1", "idle_stopped", at_us=7)]
    )
    await store.add("E", [])
    first = await store.page("a", thread="1", before=None, limit=2)
    assert [(one.state, one.thread, one.engine, one.at_us) for one in first] == [
        ("idle_stopped", "1", "E", 7),
        ("running", "1", "E", 1),
    ]
    assert [one.state for one in await store.page("a", thread="1", before=first[-1].id, limit=2)] == ["creating"]
    assert [one.thread for one in await store.page("a", thread=None, before=None, limit=9)] == ["1", "2", "1", "1"]
    assert await store.page("b", thread="2", before=None, limit=9) == []


async def test_what_comes_after_an_id_is_read_in_its_order(database: Database) -> None:
    store = TransitionStore(database)
    await store.add(
        "E",
        [
            reported("a", "1", "creating"),
            reported("b", "1", "creating"),
            replace(reported("a", "2", "creating"), sandbox="s-2"),
        ],
    )
    (second, first) = await store.page("a", thread=None, before=None, limit=9)
    assert await store.after("a", thread=None, after=0, limit=9) == [first, second]
    assert await store.after("a", thread=None, after=first.id, limit=9) == [second]
    assert await store.after("a", thread="1", after=first.id, limit=9) == []


async def test_one_whose_thread_is_unknown_is_of_the_thread_that_its_sandbox_had(database: Database) -> None:
    store = TransitionStore(database)
    await store.add("E", [reported("a", "2", "running")])
    await store.add("E", [reported("a", "", "removed"), NewTransition("a", "", "s-9", "removed", "never told of", 1)])
    found = await store.page("a", thread=None, before=None, limit=9)
    assert [(one.thread, one.sandbox, one.state) for one in found] == [("2", "s-1", "removed"), ("2", "s-1", "running")]


async def test_that_one_is_removed_stopped_or_dead_is_written_once_for_all_reporters(database: Database) -> None:
    store = TransitionStore(database)
    states = ["running", "idle_stopped", "idle_stopped", "running", "running"]
    for state in (*states, "failed", "failed", "removed", "removed"):
        await store.add("E", [reported("a", "1", state)])
    found = await store.page("a", thread="1", before=None, limit=9)
    assert [one.state for one in reversed(found)] == [
        *("running", "idle_stopped", "running", "running", "failed", "removed")
    ]


async def test_nothing_is_written_after_that_one_was_removed_which_another_process_may_report_sooner(
    database: Database,
) -> None:
    store = TransitionStore(database)
    for state in ("running", "removed", "idle_stopped", "running", "failed"):
        await store.add("E", [reported("a", "1", state)])
    found = await store.page("a", thread="1", before=None, limit=9)
    assert [one.state for one in found] == ["removed", "running"]


async def test_what_was_only_found_is_not_written_after_what_its_maker_reported_meanwhile(database: Database) -> None:
    store = TransitionStore(database)
    await store.add("E", [reported("a", "1", "running")])
    (seen,) = await store.unfinished("E", since=0)
    found = NewTransition("a", "1", "s-1", "failed", "it is dead", 2, after=seen.id)
    await store.add("E", [reported("a", "1", "removed"), found])
    assert [one.state for one in await store.page("a", thread="1", before=None, limit=9)] == ["removed", "running"]
    await store.add("E", [replace(reported("a", "2", "running"), sandbox="s-2")])
    (seen, *_) = await store.page("a", thread="2", before=None, limit=1)
    found = NewTransition("a", "2", "s-2", "failed", "it is dead", 2, after=seen.id)
    await store.add("E", [found, found])
    assert [one.state for one in await store.page("a", thread="2", before=None, limit=9)] == ["failed", "running"]


@pytest.mark.parametrize(
    "before, is_written", [((), True), (("creating",), True), (("running",), False), (("removed",), False)]
)
async def test_that_another_process_started_one_is_written_only_if_that_process_did_not(
    database: Database, before: Sequence[str], is_written: bool
) -> None:
    store = TransitionStore(database)
    await store.add("E", [reported("a", "1", state) for state in before])
    await store.add("E", [replace(reported("a", "1", "running"), observed=True)])
    found = await store.page("a", thread="1", before=None, limit=9)
    assert [one.state for one in reversed(found)] == [*before, *(["running"] if is_written else [])]


async def test_the_report_of_its_making_may_come_after_that_it_runs_and_is_left_out_then(database: Database) -> None:
    store = TransitionStore(database)
    found = replace(reported("a", "1", "running"), observed=True)
    await store.add("E", [found, reported("a", "1", "creating"), reported("a", "1", "running")])
    await store.add("E", [replace(reported("a", "1", "creating"), sandbox="s-2")])
    rows = await store.page("a", thread="1", before=None, limit=9)
    assert [(one.sandbox, one.state) for one in reversed(rows)] == [
        *(("s-1", "running"), ("s-1", "running"), ("s-2", "creating"))
    ]


async def test_what_came_to_no_end_is_known_by_its_last_word(database: Database) -> None:
    store = TransitionStore(database)

    async def tell(sandbox: str, *states: str) -> None:
        await store.add("E", [NewTransition("a", "1", sandbox, state, "because", 1) for state in states])

    await tell("gone", "creating", "running", "removed")
    await tell("failed", "creating", "failed")
    await tell("died", "creating", "running", "failed")
    await tell("lives", "creating", "running")
    await tell("sleeps", "creating", "running", "idle_stopped")
    await store.add("other", [NewTransition("a", "1", "elsewhere", "running", "because", 1)])
    found = await store.unfinished("E", since=0)
    assert [(one.tenant, one.thread, one.sandbox, one.state) for one in found] == [
        ("a", "1", "died", "failed"),
        ("a", "1", "lives", "running"),
        ("a", "1", "sleeps", "idle_stopped"),
    ]
    assert await store.unfinished("E", since=found[2].id) == [found[2]]


async def test_what_is_reported_of_a_thread_that_goes_or_is_gone_is_written_nowhere(database: Database) -> None:
    store = TransitionStore(database)
    await database.write((update(threads).where(threads.c.name == "2").values(deletion="d"), None))
    await store.add(
        "E", [reported("a", "2", "removed"), reported("a", "never was", "removed"), reported("a", "1", "running")]
    )
    assert [one.thread for one in await store.page("a", thread=None, before=None, limit=9)] == ["1"]


async def test_what_is_reported_of_a_thread_whose_files_are_being_replaced_is_written(database: Database) -> None:
    store = TransitionStore(database)
    for mark, name in (("rst_1", "1"), ("frk_1", "2")):
        await database.write((update(threads).where(threads.c.name == name).values(deletion=mark), None))
    await store.add("E", [reported("a", "1", "removed"), reported("a", "2", "removed")])
    assert [one.thread for one in await store.page("a", thread=None, before=None, limit=9)] == ["1"]


async def test_a_reason_of_any_length_is_kept_in_part(database: Database) -> None:
    store = TransitionStore(database)
    await store.add("E", [NewTransition("a", "1", "s", "failed", "x" * 9_999, 1)])
    assert [len(one.reason) for one in await store.page("a", thread="1", before=None, limit=1)] == [512]


async def test_a_history_goes_with_its_thread(database: Database) -> None:
    store = TransitionStore(database)
    await store.add("E", [reported("a", "1", "running"), reported("a", "2", "running")])
    removed = await ErasureStore(database).remove_thread("a", "1", "me")
    assert removed is not None
    assert removed["sandbox_transitions"] == 1
    assert [one.thread for one in await store.page("a", thread=None, before=None, limit=9)] == ["2"]


async def test_what_is_too_old_is_removed(database: Database) -> None:
    store = TransitionStore(database)
    await store.add("E", [reported("a", "1", "running", at_us=at_us) for at_us in (1, 2, 3)])
    assert await RetentionStore(database).prune_transitions(3) == 2
    assert [one.at_us for one in await store.page("a", thread="1", before=None, limit=9)] == [3]
