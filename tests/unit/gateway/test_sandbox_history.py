"""What an engine tells is written, in order, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from gateway.errors import Unavailable
from gateway.sandbox_history import SandboxHistory
from gateway.storage.transition_store import NewTransition, TransitionStore
from sandbox.container_config import digest
from sandbox.errors import EngineUnavailable
from sandbox.transition import State, Transition


class FakeStore:
    def __init__(self) -> None:
        self.written: list[tuple[str, NewTransition]] = []
        self.refusals = 0
        self.wrote = asyncio.Event()

    async def add(self, engine: str, told: Sequence[NewTransition]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("not now")
        self.written += [(engine, one) for one in told]
        self.wrote.set()


async def engine_id() -> str:
    return "E"


def told(state: State = "running", *, tenant: str = "a", name: str = "t") -> Transition:
    return Transition(digest(tenant), digest(tenant, name), "s-1", state, "because", name)


def history(store: FakeStore) -> SandboxHistory:
    return SandboxHistory(cast(TransitionStore, store), ["a"], clock=lambda: 7)


async def test_what_is_told_is_written_in_its_order_with_the_engine_and_the_time() -> None:
    store = FakeStore()
    kept = history(store)
    async with kept.writing(engine_id):
        kept.tell(told("creating"))
        kept.tell(told("running"))
        async with asyncio.timeout(30):
            await store.wrote.wait()
    assert [(engine, one.tenant, one.thread, one.state, one.at_us) for engine, one in store.written] == [
        ("E", "a", "t", "creating", 7),
        ("E", "a", "t", "running", 7),
    ]


async def test_what_is_told_last_is_written_before_it_ends_and_nobody_s_is_not() -> None:
    store = FakeStore()
    kept = history(store)

    async def silent() -> str:
        raise EngineUnavailable("gone")

    async with kept.writing(silent):
        kept.tell(told("removed"))
        kept.tell(told("removed", tenant="unknown"))
        kept.tell(told("removed", name=""))
    assert [(engine, one.state) for engine, one in store.written] == [("", "removed")]


async def test_while_the_database_refuses_what_was_told_waits_the_newest_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.sandbox_history._RETRY_S", 0.0)
    monkeypatch.setattr("gateway.sandbox_history._WAITING_LIMIT", 2)
    store = FakeStore()
    store.refusals = 3
    kept = history(store)
    async with kept.writing(engine_id):
        for state in ("creating", "running", "idle_stopped"):
            kept.tell(told(cast(State, state)))
        async with asyncio.timeout(30):
            await store.wrote.wait()
    assert [one.state for _, one in store.written] == ["running", "idle_stopped"]
