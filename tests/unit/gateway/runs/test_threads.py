"""Threads and runs as they are listed, over real gRPC and on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc.aio
import pytest
from sqlalchemy import insert, update

from agent.messages import Message, ToolCall
from airlock.v1 import run_service_pb2, thread_service_pb2
from gateway.client import Client, InvalidArgument, NotFound, ThreadBusy, TooLarge
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.identity.principal import Context, Principal
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.runs import threads as threads_module
from gateway.runs.runs import Runs
from gateway.runs.threads import Threads
from gateway.services.run_service import RunService
from gateway.services.thread_service import ThreadService
from gateway.storage.database import Database
from gateway.storage.entities import stored_text
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import messages, runs, thread_metadata
from gateway.storage.thread_store import TASK_LISTED_CHARS, ThreadStore
from gateway.storage.usage_store import UsageStore
from gateway.support.heavy_work import Work, at_once
from gateway.tenancy.tenants import Tenant
from gateway.v1 import run_service_pb2_grpc, thread_service_pb2_grpc
from tests.unit.gateway.made_parts import made_quotas

ACME = Tenant("acme", Policy(PolicyDocument(version=1)), ModelSettings(), {})


class Ticking:
    """A clock that shows another second each time."""

    now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        self.now_us += 1_000_000
        return self.now_us


@dataclass
class Served:
    client: Client
    store: Store
    database: Database
    turns: list[str]


async def anybody(_context: Context) -> Principal:
    return Principal(ACME, Caller("key_1", "alk_ab.."), ("run",))


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.open(database_url)
    store, listed = Store(database, clock=Ticking()), ThreadStore(database)
    turns: list[str] = []

    def work_of(tenant: str) -> Work:
        turns.append(tenant)
        return at_once

    threads = Threads(store, listed, cast(Any, None), lambda _tenant, _name: None, made_quotas(database), work_of)
    server = grpc.aio.server()
    thread_service_pb2_grpc.add_ThreadServiceServicer_to_server(ThreadService(threads, anybody), server)
    run_service = RunService(cast(Runs, None), anybody, listed, UsageStore(database))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(run_service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x", retry=None) as client:
        yield Served(client, store, database, turns)
    await server.stop(None)
    await database.close()


async def names(found: AsyncIterator[Any]) -> list[str]:
    return [one.name async for one in found]


async def ids(found: AsyncIterator[Any]) -> list[str]:
    return [one.id async for one in found]


async def a_run(served: Served, thread: str, **given: Any) -> str:
    known = await served.store.thread("acme", thread)
    run = await served.store.add_run(known, NewRun(**{"agent": "default", "task": "x", "policy_version": "v", **given}))
    return run.id


async def ended(served: Served, run_id: str, status: str = "completed") -> None:
    await served.database.write((update(runs).where(runs.c.id == run_id).values(status=status), None))


async def test_threads_are_listed_over_many_pages_the_newest_first(served: Served) -> None:
    made = [f"t{number:03}" for number in range(203)]
    for name in made:
        await served.store.thread("acme", name)
    await served.store.thread("other", "theirs")
    assert await names(served.client.list_threads()) == made[::-1]
    assert await names(served.client.list_threads(prefix="t00")) == made[9::-1]
    for pattern in ("t%", "t_", "T00"):
        assert await names(served.client.list_threads(prefix=pattern)) == [], "it is text, and its case counts"


async def test_a_token_of_another_query_is_refused(served: Served) -> None:
    for name in ("a1", "a2"):
        await served.store.thread("acme", name)
    from airlock.v1 import thread_service_pb2 as pb

    stub: Any = thread_service_pb2_grpc.ThreadServiceStub(served.client._channel)
    page = await stub.ListThreads(pb.ListThreadsRequest(page_size=1))
    assert page.next_page_token
    for request in (
        pb.ListThreadsRequest(page_token=page.next_page_token, name_prefix="a"),
        pb.ListThreadsRequest(page_token="x" + page.next_page_token),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ListThreads(request)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_thread_and_one_of_another_tenant_are_equally_not_found(served: Served) -> None:
    await served.store.thread("other", "theirs")
    for attempt in (served.client.get_thread, served.client.delete_thread):
        said = set()
        for name in ("theirs", "nobody"):
            with pytest.raises(NotFound) as raised:
                await attempt(name)
            said.add(str(raised.value).replace(name, ""))
        assert len(said) == 1
    with pytest.raises(NotFound):
        _ = [one async for one in served.client.messages("theirs")]


async def test_metadata_is_set_and_removed_and_bounded(served: Served) -> None:
    made = await served.client.set_thread_metadata("t", {"a": [1, {"b": "é"}], "c": None})
    assert made.metadata == {"a": [1, {"b": "é"}], "c": None}
    changed = await served.client.set_thread_metadata("t", {"a": 2}, remove=["c", "never"])
    assert changed.metadata == {"a": 2}
    assert (await served.client.get_thread("t")).metadata == {"a": 2}
    full = {f"k{number}": number for number in range(1024)}
    with pytest.raises(InvalidArgument, match="1,024 metadata keys"):
        await served.client.set_thread_metadata("t", full)
    assert (await served.client.get_thread("t")).metadata == {"a": 2}
    await served.client.set_thread_metadata("t", full, remove=["a"])
    for bad in ({"": 1}, {"k" * 513: 1}, {"a": "x" * 65_535}):
        with pytest.raises(InvalidArgument, match="set"):
            await served.client.set_thread_metadata("u", bad)
    with pytest.raises(InvalidArgument, match="name each key once"):
        await served.client.set_thread_metadata("u", {"a": 1}, remove=["a"])


async def test_all_metadata_of_a_thread_is_bounded_together_and_setting_some_returns_those(served: Served) -> None:
    value = "x" * 60_000
    await served.client.set_thread_metadata("t", {f"k{n}": value for n in range(16)})
    with pytest.raises(InvalidArgument, match="1,048,576 bytes"):
        await served.client.set_thread_metadata("t", {"k16": value, "k17": value})
    with pytest.raises(InvalidArgument, match="1,048,576 bytes"):
        await served.client.set_thread_metadata("other", {f"k{n}": value for n in range(18)})
    changed = await served.client.set_thread_metadata("t", {"k17": value}, remove=["k0"])
    assert set(changed.metadata or ()) == {"k17"}
    assert len((await served.client.get_thread("t")).metadata or ()) == 16


async def test_metadata_from_before_there_was_a_limit_is_named_and_can_be_removed(served: Served) -> None:
    thread = await served.store.thread("acme", "old")
    rows = [{"thread_id": thread.id, "key": f"k{n}", "value": f'"{"é" * 30_000}"', "updated_us": 1} for n in range(40)]
    await served.database.write((insert(thread_metadata), rows))
    with pytest.raises(TooLarge, match="1,048,576 bytes"):
        await served.client.get_thread("old")
    await served.client.set_thread_metadata("old", remove=[f"k{n}" for n in range(30)])
    assert len((await served.client.get_thread("old")).metadata or ()) == 10


async def test_a_number_of_too_many_digits_is_refused_in_words_for_clients(served: Served) -> None:
    request = thread_service_pb2.SetThreadMetadataRequest(thread="t", set={"n": "1" * 30_000})
    with pytest.raises(InvalidArgument, match="too many digits") as refused:
        await served.client._unary(served.client._method(type(request)), request)
    assert "sys." not in str(refused.value)


async def test_the_values_in_all_metadata_of_a_request_are_counted_before_any_is_decoded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = {f"k{n}": [0] * 6_000 for n in range(3)}
    assert (await served.client.set_thread_metadata("t", fits)).metadata == fits
    assert served.turns == ["acme"], "large ones are checked in a turn of their tenant"
    await served.client.set_thread_metadata("t", {"a": [0] * 100})
    assert served.turns == ["acme"]
    decoded: list[object] = []
    monkeypatch.setattr(threads_module, "freeze", decoded.append)
    with pytest.raises(InvalidArgument, match="more than 20,000 values"):
        await served.client.set_thread_metadata("t", {f"k{n}": [0] * 6_000 for n in range(4)})
    assert not decoded


async def test_metadata_stays_as_it_is_while_a_run_is_under_way(served: Served) -> None:
    run_id = await a_run(served, "t")
    for attempt in (served.client.set_thread_metadata("t", {"a": 1}), served.client.delete_thread("t")):
        with pytest.raises(ThreadBusy) as raised:
            await attempt
        assert raised.value.details == {"run_id": run_id}
    assert (await served.client.get_thread("t")).run_id == run_id
    await ended(served, run_id)
    assert (await served.client.set_thread_metadata("t", {"a": 1})).metadata == {"a": 1}


async def test_what_was_said_comes_back_in_its_order(served: Served) -> None:
    thread = await served.store.thread("acme", "t")
    call = ToolCall(id="c", name="ls", arguments={"path": "/"})
    said = [Message(role="user", content="do"), Message(role="assistant", content="", tool_calls=(call,))]
    said += [Message(role="tool", content=f"{n}" * 50_000, tool_call_id="c") for n in range(300)]
    rows = [
        {"thread_id": thread.id, "position": n, "run_id": "r", "message": stored_text(one)}
        for n, one in enumerate(said)
    ]
    rows.append({"thread_id": thread.id, "position": len(rows), "run_id": "r", "message": "{damaged"})
    await served.database.write((insert(messages), rows))
    found = [one async for one in served.client.messages("t")]
    assert [one.position for one in found] == list(range(303))
    assert [one.content for one in found[:-1]] == [one.content for one in said]
    assert found[1].tool_calls == [{"id": "c", "name": "ls", "arguments": {"path": "/"}}]
    assert (found[2].role, found[2].tool_call_id, found[2].run_id) == ("tool", "c", "r")
    assert "cannot be read" in found[-1].content
    assert (await served.client.get_thread("t")).messages == 303


async def test_runs_are_listed_by_status_thread_agent_and_time(served: Served) -> None:
    client = served.client
    first = await a_run(served, "a", task="x" * 5000)
    second = await a_run(served, "b", agent="helper")
    await served.store.add_run(
        await served.store.thread("other", "a"), NewRun(agent="default", task="theirs", policy_version="v")
    )
    await ended(served, first)
    third = await a_run(served, "a")
    await ended(served, third, "failed")
    found = [run async for run in client.list_runs()]
    assert [run.id for run in found] == [third, second, first]
    assert len(found[2].task) == TASK_LISTED_CHARS
    assert await ids(client.list_runs(thread="a")) == [third, first]
    assert await ids(client.list_runs(agent="helper")) == [second]
    assert await ids(client.list_runs(statuses=["completed", "failed"])) == [third, first]
    assert await ids(client.list_runs(since=found[1].started_at)) == [third, second]
    assert await ids(client.list_runs(until=found[1].started_at)) == [first]
    assert await ids(client.list_runs(since=datetime.now(UTC) + timedelta(days=1))) == []
    with pytest.raises(InvalidArgument, match="is not one of running, completed"):
        await ids(client.list_runs(statuses=cast(Any, ["gone"])))
    with pytest.raises(InvalidArgument, match="statuses: 16 at most") as raised:
        await client._unary(
            client._method(run_service_pb2.ListRunsRequest), run_service_pb2.ListRunsRequest(statuses=[99])
        )
    assert raised.value.violations.keys() == {"statuses"}
