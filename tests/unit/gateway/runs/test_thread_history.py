"""What is kept of a thread: by a real agent's run, on a real SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from pydantic import JsonValue
from sqlalchemy import select
from structlog.testing import capture_logs

from agent.agent import Agent
from agent.hooks.hook import Hook
from agent.messages import Message
from agent.state import AgentState
from agent.tools.tool import Capability
from gateway.errors import Unavailable
from gateway.runs import checkpoints
from gateway.runs.checkpoints import KEYS_LIMIT, VALUE_LIMIT_CHARS, ThreadHistoryHook
from gateway.storage.database import Database, Write
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.storage.tables import thread_metadata
from tests.unit.agent.fakes import SaysInTurn, allowing, call, done, says, tool
from tests.unit.gateway.stored_steps import StoredSteps


class Counting(Database):
    """A real database that counts, and refuses on request."""

    writes: Sequence[Sequence[Write]] = ()
    refuse = 0

    async def write(self, *writes: Write) -> None:
        if self.refuse:
            self.refuse -= 1
            raise Unavailable("full")
        self.writes = (*self.writes, writes)
        await super().write(*writes)

    def inserted(self, since: int) -> list[int]:
        """Return how many rows each write had."""
        return [
            sum(len(rows) if isinstance(rows, list) else 1 for statement, rows in writes if statement.is_insert)  # type: ignore[attr-defined]
            for writes in self.writes[since:]
        ]


class Ticking:
    """A clock that has never shown the same time twice."""

    now_us = 0

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Counting]:
    opened = await Counting.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Counting) -> Store:
    return Store(database, clock=Ticking())


@pytest.fixture
async def thread(store: Store) -> Thread:
    return await store.thread("t", "name")


class Notes(Hook):
    """Changes the metadata at each step: one function a step."""

    name = "notes"

    def __init__(self, *changes: dict[str, JsonValue]) -> None:
        self.changes = list(changes)

    async def after_step(self, state: AgentState) -> AgentState:
        for key, value in (self.changes.pop(0) if self.changes else {}).items():
            state = state.without_metadata(key) if value is None else state.with_metadata(key, value)
        return state


def _kept(messages: Sequence[Message] = (), **fields: object) -> AgentState:
    return AgentState(run_id="r1", thread="name", messages=tuple(messages)).with_(**fields)


async def _run(
    store: Store, thread: Thread, *changes: dict[str, JsonValue], run_id: str = "r1", steps: int = 1
) -> tuple[AgentState, ThreadHistoryHook]:
    """Run an agent with this many steps, the last one without a tool call."""
    kept = AgentState(
        run_id=run_id,
        thread=thread.name,
        messages=await store.messages_of(thread),
        metadata=await store.metadata_of(thread),
    )
    history = ThreadHistoryHook(StoredSteps(store, run_id), thread, kept)
    responses = [says("", call("t", n=n)) for n in range(steps - 1)]
    agent = Agent(
        model=SaysInTurn(*responses, says("done")),
        capabilities=(Capability("tools", tools=(tool("t", done),)),),
        hooks=(Notes(*changes), allowing(), history),
    )
    ended = await agent.run(kept.say(Message(role="user", content=f"task of {run_id}")))
    return ended, history


async def _texts(store: Store, thread: Thread) -> list[str]:
    return [message.content for message in await store.messages_of(thread)]


async def test_a_second_run_finds_what_the_first_said_and_noted(store: Store, thread: Thread) -> None:
    await _run(store, thread, {"todos.list": [{"id": "1"}], "plain": "x"}, steps=2)
    ended, _ = await _run(store, thread, run_id="r2")
    assert ended.metadata["todos.list"] == [{"id": "1"}]
    assert ended.metadata["plain"] == "x"
    assert await _texts(store, thread) == ["task of r1", "", "done", "done", "task of r2", "done"]


async def test_only_keys_that_changed_are_written_and_removed_ones_go(
    database: Counting, store: Store, thread: Thread
) -> None:
    await _run(store, thread, {"stays": {"a": 1}, "changes": 1, "goes": 1})
    query = select(thread_metadata.c.key, thread_metadata.c.updated_us)
    before = {row.key: row.updated_us for row in await database.rows(query)}
    await _run(store, thread, {"stays": {"a": 1}, "changes": True, "goes": None}, run_id="r2")
    after = {row.key: row.updated_us for row in await database.rows(query)}
    assert after["stays"] == before["stays"]
    assert after["changes"] > before["changes"]
    assert await store.metadata_of(thread) == {"stays": {"a": 1}, "changes": True}


async def test_a_step_costs_one_transaction_of_what_it_added_however_long_the_thread_is(
    database: Counting, store: Store, thread: Thread
) -> None:
    await _run(store, thread, {f"key{n}": "x" * 1000 for n in range(100)}, steps=15)
    since = len(database.writes)
    await _run(store, thread, {"one": 1}, {"one": 2}, {"two": 1}, run_id="r2", steps=5)
    # The task; then each step's answer, its tool's result and the one key it changed; at last the answer alone.
    assert database.inserted(since) == [1, 3, 3, 3, 2, 1]


async def test_a_run_that_changes_nothing_writes_nothing(database: Counting, store: Store, thread: Thread) -> None:
    state = _kept([Message(role="user", content="a")], metadata={"k": [1]})
    history = ThreadHistoryHook(StoredSteps(store), thread, state)
    since = len(database.writes)
    await history.before_step(state.with_metadata("k", [1]))
    assert database.writes[since:] == ()


async def test_what_a_failed_write_did_not_keep_the_next_one_does(
    database: Counting, store: Store, thread: Thread
) -> None:
    history = ThreadHistoryHook(StoredSteps(store), thread, _kept())
    state = _kept([Message(role="user", content="a")], metadata={"k": 1})
    database.refuse = 1
    with pytest.raises(Unavailable):
        await history.before_step(state)
    await history.execution_end(state.say(Message(role="assistant", content="b")))
    assert await _texts(store, thread) == ["a", "b"]
    assert await store.metadata_of(thread) == {"k": 1}


async def test_a_thread_that_cannot_be_kept_ends_the_run(database: Counting, store: Store, thread: Thread) -> None:
    database.refuse = 1
    ended, _ = await _run(store, thread)
    assert ended.stop is not None
    assert (ended.stop.hook, ended.stop.rule) == ("history", "hook_failed")
    assert ended.steps == 0


async def test_a_run_that_makes_its_thread_too_long_is_stopped_with_the_numbers_and_what_it_said_is_kept(
    store: Store, thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "THREAD_LIMIT_CHARS", 1000)
    long = call("t", n=1, text="x" * 1000)  # what a model writes into a call counts, too
    kept = AgentState(run_id="r1", thread=thread.name)
    agent = Agent(
        model=SaysInTurn(says("", call("t", n=0)), says("", long), says("", call("t", n=2)), says("done")),
        capabilities=(Capability("tools", tools=(tool("t", done),)),),
        hooks=(allowing(), ThreadHistoryHook(StoredSteps(store), thread, kept)),
    )
    ended = await agent.run(kept.say(Message(role="user", content="task")))
    assert ended.stop is not None
    assert (ended.stop.hook, ended.stop.rule, ended.steps) == ("history", "max_thread_chars", 2)
    assert "the limit is 1,000" in ended.stop.reason
    assert len(await store.messages_of(thread)) == len(ended.messages) == 5


@pytest.mark.parametrize(
    "key, value, problem",
    [
        ("key", "x" * VALUE_LIMIT_CHARS, "characters of JSON"),
        ("k" * 513, "xxxx", "512 characters"),
        ("nul\0", "xxxx", "no NUL"),
    ],
)
async def test_a_value_that_does_not_fit_is_logged_and_the_run_goes_on_with_it(
    store: Store, thread: Thread, key: str, value: JsonValue, problem: str
) -> None:
    with capture_logs() as logged:
        ended, _ = await _run(store, thread, {"key": "kept"}, {key: value, "fits": 1}, {"later": 1}, steps=4)
    assert ended.stop is not None
    assert ended.stop.rule == "stop", ended.stop
    assert ended.metadata[key] == value
    assert await store.metadata_of(thread) == {"key": "kept", "fits": 1, "later": 1}
    (said,) = [line for line in logged if line["event"] == "metadata was not saved"]
    assert problem in said["problem"]
    assert said["thread"] == "name"
    assert "xxxx" not in str(said)


async def test_so_many_keys_are_kept_and_a_removed_one_makes_room(store: Store, thread: Thread) -> None:
    many: dict[str, JsonValue] = {f"k{n}": n for n in range(KEYS_LIMIT + 1)}
    await _run(store, thread, many)
    assert len(await store.metadata_of(thread)) == KEYS_LIMIT
    await _run(store, thread, {"k0": None, "k1": "other", "new": 1, "newer": 1}, run_id="r2")
    kept = await store.metadata_of(thread)
    assert len(kept) == KEYS_LIMIT
    assert kept["k1"] == "other"
    assert kept["new"] == 1
    assert "k0" not in kept


async def test_all_that_is_kept_is_bounded_together_and_what_does_not_fit_leaves_what_was_kept_last(
    store: Store, thread: Thread
) -> None:
    value = "x" * 60_000
    await _run(store, thread, {f"k{n}": value for n in range(17)})
    with capture_logs() as logs:
        changes: list[dict[str, JsonValue]] = [{"k17": value, "small": 1, "k1": 2, "k18": value}, {"k19": value}]
        await _run(store, thread, *changes, run_id="r2", steps=2)
    kept = await store.metadata_of(thread)
    assert set(kept) == {f"k{n}" for n in range(17)} | {"small", "k17"}
    assert kept["k1"] == 2
    assert {one["key"] for one in logs if one["event"] == "metadata was not saved"} == {"k18", "k19"}


async def test_a_hook_that_rewrites_the_past_does_not_change_what_was_kept(store: Store, thread: Thread) -> None:
    first, second, third = (Message(role="user", content=content) for content in "abc")
    history = ThreadHistoryHook(StoredSteps(store), thread, _kept())
    await history.before_step(_kept([first, second]))
    await history.before_step(_kept([Message(role="user", content="summary"), third]))
    await history.before_step(_kept([Message(role="user", content="summary"), third]).say(first))
    assert await _texts(store, thread) == ["a", "b", "summary", "c", "a"]


@pytest.mark.parametrize("fields", [{"run_id": "r2"}, {"depth": 1}])
async def test_what_a_subagent_says_does_not_enter_the_thread(
    store: Store, thread: Thread, fields: dict[str, object]
) -> None:
    history = ThreadHistoryHook(StoredSteps(store), thread, _kept())
    state = _kept([Message(role="user", content="a")], metadata={"k": 1}).with_(**fields)
    await history.before_step(state)
    await history.execution_end(state)
    assert await _texts(store, thread) == []
    assert await store.metadata_of(thread) == {}


async def test_subagents_do_not_inherit_it_and_its_failure_is_closed() -> None:
    assert not ThreadHistoryHook.mandatory
    assert ThreadHistoryHook.on_failure == "closed"
