"""Tools that a caller runs itself, over the real way of a tool call and real gRPC; no sandbox is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc.aio
import pytest
from sqlalchemy import select

from airlock import Client
from airlock.errors import InvalidArgument
from airlock.v1 import tool_service_pb2 as pb
from gateway.approvals.approvals import Approvals
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.identity.auth import Principal
from gateway.policy.document import LimitsSection, PolicyDocument, ResultRule, Rule
from gateway.policy.judge import Policy
from gateway.services.approval_service import ApprovalService
from gateway.services.tool_service import ToolService
from gateway.serving.edge import FirstMessageTimeout
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.storage.tables import audit_records, tool_calls
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.v1 import approval_service_pb2_grpc, tool_service_pb2_grpc
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (
    Rule(id="small", tools=("caller/refund",), effect="allow", reason="small sums", when="args.amount <= 100"),  # type: ignore[arg-type]
    Rule(id="large", tools=("caller/refund",), effect="ask", reason="a person decides", when="args.amount > 100"),  # type: ignore[arg-type]
    Rule(id="salaries", tools=("caller/salary",), effect="allow", reason="the result is judged"),  # type: ignore[arg-type]
)
RESULTS = (ResultRule(id="no-salaries", tools=("caller/salary",), contains="salary", reason="they stay here"),)  # type: ignore[arg-type]
SERVED = Tenant(
    "t",
    Policy(PolicyDocument(version=1, rules=RULES, results=RESULTS, limits=LimitsSection(timeout_s=1))),
    ModelSettings(),
    {},
)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    database = await Database.open(sqlite_url)
    yield database
    await database.close()


async def anybody(context: Any) -> Principal:
    return Principal(SERVED, Caller("key_1", "alk_ab.."), ("tool", "approve"))


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    store = ApprovalStore(database)
    calls = made_tool_calls(database, approvals=store)
    approvals = Approvals(store, calls.prepare, poll_s=0.01)
    server = grpc.aio.server(interceptors=(FirstMessageTimeout(),))
    approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalService(approvals, anybody), server)
    service = ToolService(calls, anybody, RequestedCalls(calls, Store(database)))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "key") as made:
        yield made
    approvals.close()
    await server.stop(None)


Recorded = Callable[[], Awaitable[tuple[Mapping[str, Any], Mapping[str, Any]]]]


@pytest.fixture
def recorded(database: Database) -> Recorded:
    """Return a function that returns the newest row of the journal, and of the audit, once the call is over."""

    async def newest() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        async with asyncio.timeout(10):
            while True:
                calls = await database.rows(select(tool_calls).order_by(tool_calls.c.started_us.desc()))
                audited = await database.rows(select(audit_records).order_by(audit_records.c.sequence.desc()))
                if calls and audited and calls[0].state != "executing":
                    return calls[0]._mapping, audited[0]._mapping
                await asyncio.sleep(0.01)

    return newest


async def test_a_call_that_a_rule_allows_runs_and_is_journaled_and_audited(client: Client, recorded: Recorded) -> None:
    given: list[Mapping[str, Any]] = []

    async def refund(arguments: Mapping[str, Any]) -> str:
        given.append(arguments)
        return "refunded"

    result = await client.run_caller_tool("refund", {"amount": 5}, refund, thread="t1")
    assert (result.content, result.verdict, result.rule, result.outcome) == ("refunded", "allow", "small", "completed")
    assert given == [{"amount": 5}]
    row, audited = await recorded()
    assert (row["name"], json.loads(row["arguments"]), row["outcome"]) == ("caller/refund", {"amount": 5}, "completed")
    assert (audited["tool"], audited["verdict"], audited["rule"]) == ("caller/refund", "allow", "small")
    assert audited["arguments_digest"] == row["arguments_digest"]


async def test_a_call_that_no_rule_allows_does_not_run(client: Client, recorded: Recorded) -> None:
    result = await client.run_caller_tool("delete", {}, pytest.fail)
    assert (result.verdict, result.rule, result.outcome) == ("deny", "default-deny", "blocked")
    assert (await recorded())[1]["verdict"] == "deny"


async def test_a_call_that_asks_runs_once_it_is_approved_and_with_no_other_arguments(
    client: Client,
) -> None:
    given: list[Mapping[str, Any]] = []

    def refund(arguments: Mapping[str, Any]) -> bytes:
        given.append(arguments)
        return b"refunded"

    waiting = await client.run_caller_tool("refund", {"amount": 500}, refund)
    assert (waiting.verdict, waiting.outcome, waiting.rule) == ("ask", "waiting", "large")
    await client.resolve_approval(waiting.approval_id, "once")
    other = await client.run_caller_tool("refund", {"amount": 501}, refund)
    assert other.outcome == "waiting"
    assert given == []
    assert (await client.run_caller_tool("refund", {"amount": 500}, refund)).content == "refunded"
    assert (await client.run_caller_tool("refund", {"amount": 500}, refund)).outcome == "waiting"
    assert given == [{"amount": 500}]


async def test_results_are_judged_and_what_the_tool_raises_is_a_failed_result(client: Client) -> None:
    kept_back = await client.run_caller_tool("salary", {}, lambda _: "the salary is 1")
    assert "salary is 1" not in kept_back.content
    assert "no-salaries" in kept_back.content

    def fails(arguments: Mapping[str, Any]) -> str:
        raise ValueError("no account")

    failed = await client.run_caller_tool("refund", {"amount": 1}, fails)
    assert (failed.content, failed.is_error, failed.outcome) == ("ValueError: no account", True, "failed")
    large = await client.run_caller_tool("refund", {"amount": 1}, lambda _: b"x" * (2 * 1024 * 1024 + 1))
    assert "TooLarge" in large.content


async def test_a_tool_that_is_too_slow_is_cancelled_and_the_outcome_says_so(client: Client) -> None:
    ended: list[str] = []

    async def slow(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("ended")
        return ""

    result = await client.run_caller_tool("refund", {"amount": 1}, slow)
    assert (result.outcome, result.is_error) == ("timed_out", True)
    assert "limits.timeout_s" in result.content
    assert ended == ["ended"]


async def test_a_caller_that_goes_away_leaves_a_cancelled_call(client: Client, recorded: Recorded) -> None:
    begun = asyncio.Event()

    async def slow(arguments: Mapping[str, Any]) -> str:
        begun.set()
        await asyncio.sleep(600)
        return ""

    call = asyncio.create_task(client.run_caller_tool("refund", {"amount": 1}, slow))
    await begun.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    row, audited = await recorded()
    assert (row["outcome"], audited["outcome"]) == ("cancelled", "cancelled")


CALL = pb.RunCallerToolRequest(call=pb.CallerToolCall(name="refund", arguments_json='{"amount": 1}'))


@pytest.mark.parametrize(
    "messages, says",
    [
        ([], "first message must be `call`"),
        ([pb.RunCallerToolRequest(result=pb.CallerToolResult())], "first message must be `call`"),
        ([pb.RunCallerToolRequest(call=pb.CallerToolCall(name="a/b"))], "name"),
        ([CALL, CALL], "second message must be `result`"),
    ],
)
async def test_messages_out_of_turn_are_refused(
    client: Client, messages: list[pb.RunCallerToolRequest], says: str
) -> None:
    with client._translated(), pytest.raises(InvalidArgument, match=says):
        call = client._method(pb.RunCallerToolRequest)(aiter_of(messages))
        with client._translated():
            async for _ in call:
                pass


async def test_a_second_message_that_cannot_be_decoded_is_refused(client: Client, recorded: Recorded) -> None:
    path = "/gateway.v1.ToolService/RunCallerTool"
    call = client._open(client._open_channel().stream_stream(path))
    await call.write(CALL.SerializeToString())
    await call.read()
    await call.write(b"\xff")
    with pytest.raises(InvalidArgument, match="the request cannot be decoded: "), client._translated():
        await call.read()
    assert (await recorded())[0]["outcome"] == "failed"


async def aiter_of(messages: list[pb.RunCallerToolRequest]) -> AsyncIterator[pb.RunCallerToolRequest]:
    for message in messages:
        yield message


@pytest.mark.parametrize("arguments", ["{", "[]", "1", '{"amount": NaN}'])
async def test_arguments_that_are_no_json_object_are_refused_by_the_policy(client: Client, arguments: str) -> None:
    async def asked() -> AsyncIterator[pb.RunCallerToolRequest]:
        yield pb.RunCallerToolRequest(call=pb.CallerToolCall(name="refund", arguments_json=arguments))

    answers = [said async for said in client._method(pb.RunCallerToolRequest)(asked())]
    assert [said.WhichOneof("response") for said in answers] == ["result"]
    assert (answers[0].result.rule, answers[0].result.verdict) == ("invalid-arguments", pb.VERDICT_DENY)
