"""SandboxService over real gRPC, and an engine that is made up: which sandboxes are listed, and what they use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from airlock.v1 import sandbox_service_pb2 as pb
from gateway.client import Client
from gateway.config.model_settings import ModelSettings
from gateway.errors import InvalidArgument, NotFound, Unavailable
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.sandboxes.sandbox_usage import SandboxUsage
from gateway.services.sandbox_service import SandboxService
from gateway.storage.transition_store import StoredTransition
from gateway.tenancy.tenants import Tenant
from gateway.v1 import sandbox_service_pb2_grpc
from sandbox.sandbox import ListedSandbox
from sandbox.usage import Usage

TENANT = Tenant("t", Policy(PolicyDocument(version=1)), ModelSettings(), {})


class FakeEngine:
    """Seven sandboxes, every second one of another image, every third one of another runtime; one more is stopped."""

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        assert tenant == "t"
        stopped = ListedSandbox("s7", "thread-7", "c", "runc", 1.0, "idle_stopped", 100.5)
        return [*self._running(), stopped]

    def _running(self) -> list[ListedSandbox]:
        return [
            ListedSandbox(
                id=f"s{number}",
                thread=f"thread-{number}",
                image="a" if number % 2 else "b",
                runtime="runc" if number % 3 else "runsc",
                created_s=1.0,
                since_s=50.0 if number else None,
            )
            for number in range(7)
        ]

    async def usage(self, sandbox: ListedSandbox) -> Usage:
        return Usage() if sandbox.runtime == "runsc" else Usage(cpu_s=2.5, memory_bytes=4096, pids=7)


class FakeThreads:
    async def get(self, tenant: str, name: str) -> object | None:
        return name if name.startswith("thread-") else None


class FakeHistory:
    async def page(self, tenant: str, *, thread: str | None, before: int | None, limit: int) -> list[StoredTransition]:
        states = ("removed", "idle_stopped", "running", "creating")
        found = [
            StoredTransition(9 - n, "t", "E", "s-1", state, "why", 1_500_000 * n) for n, state in enumerate(states)
        ]
        return [one for one in found if (before is None or one.id < before) and thread in (None, "t")][:limit]


@pytest.fixture
def usage() -> SandboxUsage:
    keeper = SimpleNamespace(users=lambda tenant, thread: 0, at_hand=lambda tenant, thread: None)
    return SandboxUsage(cast(Any, FakeEngine()), cast(Any, keeper))


@pytest.fixture
async def client(usage: SandboxUsage) -> AsyncIterator[Client]:
    async def authenticate(context: Any) -> Tenant:
        return TENANT

    server = grpc.aio.server()
    engine = cast(Any, FakeEngine())
    ends = {"running": 10.0, "idle_stopped": 20.0}
    keeper = SimpleNamespace(
        users=lambda tenant, thread: 0,
        ends_s=lambda one, spec: None if one.since_s is None else one.since_s + ends[one.state],
    )
    admin = SandboxAdmin(engine, cast(Any, keeper), cast(Any, None), cast(Any, FakeThreads()))
    none: Any = None
    history = cast(Any, FakeHistory())
    service = SandboxService(engine, cast(Any, keeper), admin, usage, none, none, history, none, authenticate)
    sandbox_service_pb2_grpc.add_SandboxServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "key", retry=None) as made:
        yield made
    await server.stop(None)


async def test_sandboxes_are_listed_by_runtime_and_image(client: Client) -> None:
    async def listed(**given: str) -> list[str]:
        return [one.id async for one in client.sandboxes(**given)]

    assert await listed() == [f"s{number}" for number in range(8)]
    assert await listed(state="running", image="c") == []
    assert await listed(state="idle_stopped") == ["s7"]
    with pytest.raises(InvalidArgument, match="idle_stopped"):
        await listed(state="asleep")
    assert await listed(runtime="runsc") == ["s0", "s3", "s6"]
    assert await listed(image="a") == ["s1", "s3", "s5"]
    assert await listed(image="a", runtime="runsc") == ["s3"]
    assert await listed(runtime="none") == []


async def test_each_says_since_when_it_is_unused_and_until_when_it_stays(client: Client) -> None:
    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    busy, idle = await client.get_sandbox("thread-0"), await client.get_sandbox("thread-1")
    stopped = await client.get_sandbox("thread-7")
    assert [one.state for one in (busy, idle, stopped)] == ["running", "running", "idle_stopped"]
    assert (busy.idle_since, busy.stops_at, busy.stopped_since, busy.removes_at) == (None, None, None, None)
    assert (idle.idle_since, idle.stops_at, idle.stopped_since, idle.removes_at) == (at(50), at(60), None, None)
    assert (stopped.idle_since, stopped.stops_at) == (None, None)
    assert (stopped.stopped_since, stopped.removes_at) == (at(100.5), at(120.5))


async def test_an_error_says_whether_there_is_no_thread_or_no_sandbox_or_one_that_is_stopped(client: Client) -> None:
    for ask in (client.get_sandbox, client.get_sandbox_stats, client.resume_sandbox):
        with pytest.raises(NotFound, match="thread 'nowhere' not found: `airlock thread list`"):
            await ask("nowhere")
        with pytest.raises(NotFound, match="'thread-8' has no sandbox"):
            await ask("thread-8")
    with pytest.raises(NotFound, match="is stopped: run `airlock sandbox resume thread-7`"):
        await client.get_sandbox_stats("thread-7")
    for thread, why in (("thread-7", "is stopped"), ("thread-8", "has no sandbox"), ("nowhere", "not found")):
        with pytest.raises(NotFound, match=why):
            await anext(client.watch_sandbox_stats(thread))


async def test_a_page_goes_on_within_its_own_query_only(client: Client) -> None:
    stub = sandbox_service_pb2_grpc.SandboxServiceStub(client._channel)
    first = await stub.ListSandboxes(pb.ListSandboxesRequest(page_size=2, image="a"))
    second = await stub.ListSandboxes(pb.ListSandboxesRequest(page_size=2, image="a", page_token=first.next_page_token))
    assert [[one.id for one in page.sandboxes] for page in (first, second)] == [["s1", "s3"], ["s5"]]
    assert second.next_page_token == ""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListSandboxes(pb.ListSandboxesRequest(image="b", page_token=first.next_page_token))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_unknown_is_none_at_the_client_and_not_zero(client: Client) -> None:
    runc, runsc = await client.get_sandbox_stats("thread-1"), await client.get_sandbox_stats("thread-3")
    assert (runc.cpu_s, runc.memory_bytes, runc.pids, runc.runtime) == (2.5, 4096, 7, "runc")
    assert (runc.cpus, runc.memory_peak_bytes, runc.workspace, runc.tmp) == (None, None, None, None)
    assert (runsc.cpu_s, runsc.memory_bytes, runsc.pids, runsc.runtime) == (None, None, None, "runsc")


async def test_all_sandboxes_are_watched_or_one(client: Client) -> None:
    watched = [reading async for reading in client.watch_sandbox_stats(interval_s=0.5, readings=2)]
    assert [[one.id for one in reading] for reading in watched] == [[f"s{number}" for number in range(7)]] * 2
    (reading,) = [reading async for reading in client.watch_sandbox_stats("thread-2", readings=1)]
    assert [one.thread for one in reading] == ["thread-2"]
    with pytest.raises(InvalidArgument, match="interval_ms"):
        await anext(client.watch_sandbox_stats(interval_s=0.1))


async def test_watchers_are_notified_that_the_gateway_stops(client: Client, usage: SandboxUsage) -> None:
    with pytest.raises(Unavailable, match="is shutting down"):
        async for _ in client.watch_sandbox_stats(interval_s=60):
            usage.close()


async def test_the_history_of_sandboxes_comes_a_page_at_a_time(client: Client) -> None:
    reported = [one async for one in client.sandbox_transitions(thread="t")]
    assert [one.state for one in reported] == ["removed", "idle_stopped", "running", "creating"]
    assert (reported[1].sandbox_id, reported[1].reason, reported[1].engine, reported[1].at.microsecond) == (
        "s-1",
        "why",
        "E",
        500_000,
    )
    assert [one async for one in client.sandbox_transitions(thread="other")] == []
    stub = sandbox_service_pb2_grpc.SandboxServiceStub(client._channel)
    first = await stub.ListSandboxTransitions(pb.ListSandboxTransitionsRequest(page_size=3))
    token = first.next_page_token
    second = await stub.ListSandboxTransitions(pb.ListSandboxTransitionsRequest(page_size=3, page_token=token))
    assert [one.state for one in second.transitions] == [pb.SANDBOX_STATE_CREATING]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListSandboxTransitions(pb.ListSandboxTransitionsRequest(thread="t", page_token=token))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
