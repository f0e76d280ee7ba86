"""What an engine tells is written, in order, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from gateway.errors import Unavailable
from gateway.sandboxes.history import HistoryWriter
from gateway.storage.transition_store import NewTransition, TransitionStore, Unfinished
from sandbox.engines.engine import Engine
from sandbox.errors import EngineUnavailable
from sandbox.sandbox import ListedSandbox, SandboxSpec, digest
from sandbox.transition import State, Transition


class FakeStore:
    def __init__(self) -> None:
        self.written: list[tuple[str, NewTransition]] = []
        self.refusals = 0
        self.wrote = asyncio.Event()
        self.known: list[Unfinished] = []
        self.asked_since: list[int] = []

    async def unfinished(self, engine: str, *, since: int) -> Sequence[Unfinished]:
        assert engine == "E"
        self.asked_since.append(since)
        return self.known

    async def add(self, engine: str, reported: Sequence[NewTransition]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("not now")
        self.written += [(engine, one) for one in reported]
        self.wrote.set()


async def engine_id() -> str:
    return "E"


def reported(state: State = "running", *, tenant: str = "a", name: str = "t") -> Transition:
    return Transition(digest(tenant), digest(tenant, name), "s-1", state, "because", name)


def history(store: FakeStore) -> HistoryWriter:
    return HistoryWriter(cast(TransitionStore, store), ["a"], clock=lambda: 7)


async def test_what_is_reported_is_written_in_its_order_with_the_engine_and_the_time() -> None:
    store = FakeStore()
    kept = history(store)
    async with kept.writing(engine_id):
        kept.report(reported("creating"))
        kept.report(reported("running"))
        async with asyncio.timeout(30):
            await store.wrote.wait()
    assert [(engine, one.tenant, one.thread, one.state, one.at_us) for engine, one in store.written] == [
        ("E", "a", "t", "creating", 7),
        ("E", "a", "t", "running", 7),
    ]


async def test_what_is_reported_last_is_written_before_it_ends_except_of_no_tenant() -> None:
    store = FakeStore()
    kept = history(store)

    async def silent() -> str:
        raise EngineUnavailable("gone")

    async with kept.writing(silent):
        kept.report(reported("removed"))
        kept.report(reported("removed", tenant="unknown"))
        kept.report(reported("removed", name=""))
    assert [(engine, one.state, one.thread) for engine, one in store.written] == [
        ("", "removed", "t"),
        ("", "removed", ""),
    ], "whose sandbox it is may be known by what was reported before"


class FakeEngine:
    """What there is, by the ids of sandboxes, all of thread `t` of tenant `a`."""

    def __init__(self, **states: State) -> None:
        self.states = states
        self.reason = ""
        self.looks = 0

    async def id(self) -> str:
        return "E"

    async def owned(self) -> Mapping[str, bool]:
        self.looks += 1
        return {one: state == "running" for one, state in self.states.items()}

    def stopped(self, spec: SandboxSpec) -> str | None:
        return next((one for one, state in self.states.items() if state == "idle_stopped"), None)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        return [
            ListedSandbox(one, "t", "image", "runc", 1.0, state, reason=self.reason if state == "failed" else "")
            for one, state in self.states.items()
        ]


async def test_what_a_killed_gateway_did_not_report_is_found_by_two_looks_and_reported_once() -> None:
    store = FakeStore()
    store.known = [
        Unfinished(3, "a", "t", "gone", "running"),
        Unfinished(4, "a", "t", "slept", "running"),
        Unfinished(5, "a", "t", "same", "running"),
        Unfinished(6, "a", "t", "made", "creating"),
        Unfinished(7, "a", "t", "dead", "creating"),
    ]
    kept = history(store)
    engine = cast(Engine, FakeEngine(slept="idle_stopped", same="running", made="running", dead="failed"))
    assert await kept.complete(engine) == 0, "who did it may be about to tell it"
    assert await kept.complete(engine) == 3
    async with kept.writing(engine.id):
        pass
    assert [(one.sandbox, one.state) for _, one in store.written] == [
        ("gone", "removed"),
        ("slept", "idle_stopped"),
        ("made", "running"),
    ]
    assert store.asked_since == [0, 3]
    assert [one.after for _, one in store.written] == [3, 4, 6]


async def test_one_that_died_is_reported_with_the_engine_s_reason_unless_another_process_works_on_it() -> None:
    store = FakeStore()
    store.known = [Unfinished(3, "a", "t", "dead", "running")]
    kept, engine = history(store), FakeEngine(dead="failed")
    assert [await kept.complete(cast(Engine, engine)) for _ in range(3)] == [0, 0, 0], "it may just be removed"
    engine.reason = "it was killed"
    assert [await kept.complete(cast(Engine, engine)) for _ in range(2)] == [0, 1]
    store.known = [Unfinished(4, "a", "t", "dead", "failed")]
    assert [await kept.complete(cast(Engine, engine)) for _ in range(2)] == [0, 0]
    assert [await kept.complete(cast(Engine, FakeEngine())) for _ in range(2)] == [0, 1]
    async with kept.writing(engine.id):
        pass
    assert [(one.state, one.after) for _, one in store.written] == [("failed", 3), ("removed", 4)]
    assert store.written[0][1].reason == "it was killed"


async def test_the_database_is_asked_soon_after_something_ended_and_else_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.sandboxes.history._LOOK_S", 0.0)
    monkeypatch.setattr("gateway.sandboxes.history._LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr("gateway.sandboxes.history._COMPLETE_LOOKS", sys.maxsize)
    store, engine = FakeStore(), FakeEngine(one="running")
    store.known = [Unfinished(3, "a", "t", "one", "running")]
    engine.reason = "it was killed"
    kept = history(store)
    async with asyncio.timeout(30), kept.completing(cast(Engine, engine)):
        while engine.looks < 10:
            await asyncio.sleep(0)
        assert len(store.asked_since) == 1
        engine.states = {"one": "failed"}
        async with kept.writing(engine.id):
            await store.wrote.wait()
    assert [one.state for _, one in store.written] == ["failed"]


async def test_a_momentary_state_is_reported_by_the_process_that_caused_it() -> None:
    store = FakeStore()
    store.known = [Unfinished(3, "a", "t", "moving", "running")]
    kept = history(store)
    assert await kept.complete(cast(Engine, FakeEngine(moving="idle_stopped"))) == 0
    store.known = [Unfinished(4, "a", "t", "moving", "idle_stopped")]
    assert await kept.complete(cast(Engine, FakeEngine(moving="idle_stopped"))) == 0
    assert await kept.complete(cast(Engine, FakeEngine())) == 0
    assert await kept.complete(cast(Engine, FakeEngine())) == 1


async def test_while_the_database_refuses_the_newest_reports_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.sandboxes.history._RETRY_S", 0.0)
    monkeypatch.setattr("gateway.sandboxes.history._WAITING_LIMIT", 2)
    store = FakeStore()
    store.refusals = 3
    kept = history(store)
    async with kept.writing(engine_id):
        for state in ("creating", "running", "idle_stopped"):
            kept.report(reported(cast(State, state)))
        async with asyncio.timeout(30):
            await store.wrote.wait()
    assert [one.state for _, one in store.written] == ["running", "idle_stopped"]


async def test_what_is_being_written_when_it_ends_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    kept = history(store)
    writing = asyncio.Event()
    add = store.add

    async def never_at_first(engine: str, reported: Sequence[NewTransition]) -> None:
        if not writing.is_set():
            writing.set()
            await asyncio.Event().wait()
        await add(engine, reported)

    monkeypatch.setattr(store, "add", never_at_first)
    async with kept.writing(engine_id):
        kept.report(reported("removed"))
        await writing.wait()
    assert [one.state for _, one in store.written] == ["removed"]
