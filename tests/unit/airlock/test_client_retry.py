"""What the Python client tries again, how long it waits in between, and what it leaves to its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from airlock.retry import Attempts, RetryBudget
from airlock.v1 import run_service_pb2 as pb
from airlock.v1 import thread_service_pb2, tool_service_pb2
from gateway.client import Client, QuotaExceeded, Retry, Unavailable
from gateway.errors import AirlockError, InProgress, InvalidArgument, NotFound, Overloaded
from gateway.serving.edge import status_of
from gateway.v1 import run_service_pb2_grpc, thread_service_pb2_grpc, tool_service_pb2_grpc

QUICK = Retry(attempts=4, first_s=0.001, longest_s=0.01, resume_s=0.05)


def pauses(error: AirlockError, retry: Retry | None = None, chance: float = 1.0) -> list[float]:
    attempts = Attempts(retry or Retry(attempts=5, first_s=0.1, longest_s=0.5), chance=lambda: chance)
    found = []
    while len(found) < 8 and (pause_s := attempts.pause_s(error)) is not None:
        found.append(pause_s)
    return found


def test_pauses_double_up_to_the_longest_and_are_never_less_than_half() -> None:
    assert pauses(Unavailable("x")) == pytest.approx([0.1, 0.2, 0.4, 0.5])
    assert pauses(Unavailable("x"), chance=0.0) == pytest.approx([0.05, 0.1, 0.2, 0.25])


def test_a_gateway_that_says_how_long_to_wait_is_obeyed() -> None:
    assert pauses(Overloaded("x", 0.3)) == pytest.approx([0.3, 0.3, 0.4, 0.5])
    assert pauses(Overloaded("x", 60.0)) == []
    assert pauses(Overloaded("x")) == []


def test_while_most_calls_are_refused_a_refusal_is_final_and_what_is_served_earns_attempts_again() -> None:
    budget = RetryBudget()
    refused = [Attempts(QUICK, budget=budget).pause_s(Overloaded("x", 0.01)) for _ in range(20)]
    assert all(pause_s is not None for pause_s in refused[:4])
    assert refused[4:] == [None] * 16
    assert Attempts(QUICK, budget=budget).pause_s(Unavailable("x")) is not None
    for _ in range(100):
        budget.succeeded()
    assert Attempts(QUICK, budget=budget).pause_s(Overloaded("x", 0.01)) is not None


def test_what_is_under_way_is_asked_for_as_long_as_a_stream_is_resumed() -> None:
    retry = Retry(attempts=2, first_s=0.1, longest_s=0.5, resume_s=1.2)
    assert pauses(InProgress("x", 0.3), retry) == pytest.approx([0.3, 0.3, 0.4, 0.5])


async def test_what_stays_under_way_is_given_up(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    servicer.failures, servicer.error = 10**6, InProgress("under way", 0.01)
    with pytest.raises(InProgress):
        await client.call_tool("ls", {})
    assert len(servicer.asked) > QUICK.attempts


@pytest.mark.parametrize("error", [QuotaExceeded("x", 0.1), NotFound("x"), InvalidArgument("x")])
def test_an_answer_is_no_reason_to_ask_again(error: AirlockError) -> None:
    assert pauses(error) == []


class Flaky(
    run_service_pb2_grpc.RunServiceServicer,
    tool_service_pb2_grpc.ToolServiceServicer,
    thread_service_pb2_grpc.ThreadServiceServicer,
):
    """A gateway that fails a number of times before it answers, and breaks each stream after two events."""

    def __init__(self) -> None:
        self.failures = 0
        self.error: AirlockError = Unavailable("gone for a moment")
        self.asked: list[Any] = []
        self.streams_end = 0
        self.threads: set[str] = set()

    async def _fail(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        if self.failures:
            self.failures -= 1
            await self.abort(context, self.error)

    async def abort(self, context: Any, error: AirlockError) -> None:
        from grpc_status import rpc_status

        await context.abort_with_status(rpc_status.to_status(status_of(error)))

    async def StartRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._fail(request, context)
        return pb.StartRunResponse(run=pb.Run(id="run_1", status=pb.RUN_STATUS_RUNNING))

    async def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._fail(request, context)
        return tool_service_pb2.CallToolResponse(result=tool_service_pb2.ToolResult(outcome="exited"))

    async def DeleteThread(self, request: Any, context: Any) -> Any:  # noqa: N802
        there = request.thread in self.threads
        self.threads.discard(request.thread)
        await self._fail(request, context)
        if not there:
            await self.abort(context, NotFound("no such thread"))
        return thread_service_pb2.DeleteThreadResponse(removed={"threads": 1})

    async def WatchRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        at = max(request.from_sequence, 1)
        for sequence in range(at, min(at + 2, self.streams_end + 1)):
            kind = "run_finished" if sequence == self.streams_end else "step_started"
            yield pb.WatchRunResponse(event=pb.Event(sequence=sequence, type=kind, payload_json="{}"))
        if at + 2 <= self.streams_end:
            await self.abort(context, Unavailable("broken"))


@pytest.fixture
async def flaky() -> AsyncIterator[tuple[Flaky, Client]]:
    servicer, server = Flaky(), grpc.aio.server()
    run_service_pb2_grpc.add_RunServiceServicer_to_server(servicer, server)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(servicer, server)
    thread_service_pb2_grpc.add_ThreadServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x", retry=QUICK) as client:
        yield servicer, client
    await server.stop(None)


async def test_a_repeated_request_carries_the_same_id_and_another_request_another(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    servicer.failures = 3
    await client.call_tool("ls", {})
    servicer.failures = 1
    await client.start_run("x")
    *calls, first, second = servicer.asked
    assert (len(calls), len({call.request_id for call in calls})) == (4, 1)
    assert first.request_id == second.request_id != calls[0].request_id != ""


async def test_a_deletion_whose_answer_was_lost_is_asked_for_again_and_has_happened(
    flaky: tuple[Flaky, Client],
) -> None:
    servicer, client = flaky
    servicer.threads = {"reported", "lost"}
    assert await client.delete_thread("reported") == {"threads": 1}
    servicer.failures = 2
    assert await client.delete_thread("lost") == {}
    assert len(servicer.asked) == 4
    servicer.failures, servicer.error = 1, Overloaded("wait", 0.001)  # it did nothing, so nothing is gone by it
    for _ in range(2):
        with pytest.raises(NotFound):
            await client.delete_thread("never there")


async def test_attempts_are_bounded_and_can_be_switched_off(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    servicer.failures = 100
    with pytest.raises(Unavailable, match="gone for a moment"):
        await client.call_tool("ls", {})
    assert len(servicer.asked) == QUICK.attempts
    client._retry = None
    with pytest.raises(Unavailable):
        await client.call_tool("ls", {})
    assert len(servicer.asked) == QUICK.attempts + 1


async def test_the_time_of_a_call_is_for_all_its_attempts(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    servicer.failures, servicer.error = 10**6, InProgress("under way", 0.01)
    with pytest.raises(AirlockError):
        await client.call_tool("ls", {}, timeout_s=0.2)
    assert len(servicer.asked) > 1


async def test_a_run_is_followed_on_from_the_last_event_that_came(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    servicer.streams_end = 9
    assert [event.sequence async for event in client.watch_run("run_1")] == list(range(1, 10))
    assert [request.from_sequence for request in servicer.asked] == [1, 3, 5, 7, 9]


async def test_a_closed_client_does_not_try(flaky: tuple[Flaky, Client]) -> None:
    servicer, client = flaky
    await client._channel.close(None)
    for attempt in (client.call_tool("ls", {}), anext(client.watch_run("run_1"))):
        with pytest.raises(Unavailable, match="closed"):
            await attempt
    assert servicer.asked == []


async def test_a_gateway_that_stays_away_is_given_up() -> None:
    async with Client("127.0.0.1:1", "alk_x", retry=QUICK) as client:
        with pytest.raises(Unavailable):
            await anext(client.watch_run("run_1"))
