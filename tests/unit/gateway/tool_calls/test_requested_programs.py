"""Programs and processes with request ids, over real gRPC and a real database, and a sandbox that is made up."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from sqlalchemy import select, update

from airlock.v1 import process_service_pb2 as pb
from gateway.approvals.approvals import Approvals
from gateway.client import Client, Process, Retry
from gateway.config.model_settings import ModelSettings
from gateway.errors import (
    ApprovalPending,
    Conflict,
    InProgress,
    InvalidArgument,
    NotFound,
    RequestIdReused,
    Unavailable,
)
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.services.process_service import ProcessService
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.storage.tables import tool_calls as journal
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.outcome_retry_queue import UnrecordedCall
from gateway.tool_calls.requested_calls import RequestedPrograms
from gateway.v1 import process_service_pb2_grpc
from sandbox import errors as sandbox_errors
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.protocols import ProcessSpec, ProgramResult
from tests.unit.gateway.made_parts import made_tool_calls
from tests.unit.gateway.services.test_process_service import FakeKeeper, FakeSandbox, process

RULES = (
    Rule(id="any", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="server", tools=("execute",), argv=(("serve",),), effect="ask", reason="it stays"),
)
TENANT = Tenant("t", Policy(PolicyDocument(version=1, rules=RULES)), ModelSettings(), {})


class KeepingSandbox(FakeSandbox):
    """A sandbox that keeps the processes it was asked to start."""

    async def start(self, spec: ProcessSpec) -> Any:
        if any(one.id == spec.id for one in self.kept):
            raise sandbox_errors.Conflict(f"{spec.id} is in use")
        await super().start(spec)
        started = replace(process(spec.id), argv=tuple(spec.argv), started_ns=len(self.asked))
        self.kept = (*self.kept, started)
        return started

    def count(self, kind: str) -> int:
        return sum(1 for asked, _ in self.asked if asked == kind)


class BreakingService(ProcessService):
    """Breaks connections: `breaks` answers of a program are lost at its end, after what came before it."""

    breaks = 0

    async def RunProgram(self, request: Any, context: Any) -> AsyncIterator[Any]:  # type: ignore[override] # noqa: N802
        async for said in super().RunProgram(request, context):
            if said.HasField("end") and self.breaks:
                self.breaks -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
            yield said


@dataclass
class World:
    """A server, and clients of it."""

    client: Client
    once: Client
    """One that tries nothing again."""
    sandbox: KeepingSandbox
    service: BreakingService
    database: Database
    approvals: Approvals


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async def authenticate(context: Any) -> Tenant:
        return TENANT

    async with contextlib.AsyncExitStack() as stack:
        database = await Database.open(database_url)
        stack.push_async_callback(database.close)
        sandbox, asked = KeepingSandbox(), ApprovalStore(database)
        keeper = cast(SandboxKeeper, FakeKeeper(sandbox))
        tool_calls = made_tool_calls(database, keeper, approvals=asked)
        service = BreakingService(tool_calls, authenticate, RequestedPrograms(Store(database), tool_calls.late))
        server = grpc.aio.server()
        process_service_pb2_grpc.add_ProcessServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        stack.push_async_callback(server.stop, None)
        client = await stack.enter_async_context(Client(address, "key", retry=Retry(first_s=0.01)))
        once = await stack.enter_async_context(Client(address, "key", retry=None))
        yield World(client, once, sandbox, service, database, Approvals(asked, tool_calls.prepare))


def says(text: bytes, *, code: int = 3) -> Any:
    """Return the work of a program that writes a text and exits."""

    async def work(given: dict[str, Any]) -> ProgramResult:
        await given["on_output"]("stdout", text)
        return ProgramResult("exited", exit_code=code, output_bytes=len(text), duration_us=5000)

    return work


async def test_a_program_runs_once_and_is_answered_with_its_end_from_then_on(world: World) -> None:
    world.sandbox.work = says(b"hello")
    first = await world.client.run_program(["make"], request_id="r1")
    assert (first.stdout, first.exit_code, first.repeated) == ("hello", 3, False)
    again = await world.client.run_program(["make"], request_id="r1")
    assert (again.call_id, again.outcome, again.exit_code) == (first.call_id, "exited", 3)
    assert (again.repeated, again.output_bytes, again.duration_ms, again.stdout) == (True, 5, 5.0, "")
    assert world.sandbox.count("run") == 1


async def test_an_id_is_for_one_program_and_for_one_kind_of_call(world: World) -> None:
    await world.client.run_program(["make"], request_id="r1")
    with pytest.raises(RequestIdReused):
        await world.client.run_program(["make", "all"], request_id="r1")
    with pytest.raises(RequestIdReused):
        await world.client.run_program(["make"], request_id="r1", timeout_s=1)
    with pytest.raises(RequestIdReused):
        await world.client.start_process(["make"], request_id="r1")
    assert world.sandbox.count("run") == 1


async def test_a_program_that_runs_is_in_progress_and_one_whose_caller_went_is_not_run_again(world: World) -> None:
    begun = asyncio.Event()

    async def endless(given: dict[str, Any]) -> ProgramResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    world.sandbox.work = endless
    running = asyncio.create_task(world.client.run_program(["make"], request_id="r1"))
    await begun.wait()
    with pytest.raises(InProgress):
        await world.once.run_program(["make"], request_id="r1")
    running.cancel()
    await asyncio.wait([running])
    again = await world.client.run_program(["make"], request_id="r1")
    assert (again.outcome, again.repeated) == ("cancelled", True)
    assert world.sandbox.count("run") == 1


async def test_of_a_program_whose_gateway_was_lost_it_is_said_that_nothing_is_known(world: World) -> None:
    await world.client.run_program(["make"], request_id="r1")
    await world.database.write((update(journal).values(state="interrupted", result=None), None))
    again = await world.client.run_program(["make"], request_id="r1")
    assert (again.outcome, again.repeated) == ("interrupted", True)
    assert "not run again" in again.message


async def test_a_client_whose_connection_broke_has_the_end_where_it_had_the_output(world: World) -> None:
    world.sandbox.work, world.service.breaks = says(b"hello", code=0), 1
    result = await world.client.run_program(["make"], stdin=b"again")
    assert (result.stdout, result.exit_code, result.repeated) == ("hello", 0, True)
    assert world.sandbox.count("run") == 1


async def test_output_that_was_lost_with_the_connection_is_never_taken_for_none(world: World) -> None:
    async def work(given: dict[str, Any]) -> ProgramResult:
        return ProgramResult("exited", exit_code=7, output_bytes=5)

    world.sandbox.work, world.service.breaks = work, 1
    with pytest.raises(Unavailable, match="output is lost") as caught:
        await world.client.run_program(["make"])
    assert (caught.value.details["outcome"], caught.value.details["exit_code"]) == ("exited", "7")
    assert world.sandbox.count("run") == 1


async def test_input_that_was_read_is_not_sent_again(world: World) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"once"

    world.service.breaks = 1
    with pytest.raises(Unavailable, match="broken"):
        await world.client.run_program(["cat"], stdin=source())


@pytest.mark.parametrize("request_id", ["x" * 129, "a\nb"])
async def test_an_id_that_cannot_be_is_refused_before_anything_is_done(world: World, request_id: str) -> None:
    with pytest.raises(InvalidArgument, match="request_id"):
        await world.client.run_program(["make"], request_id=request_id)
    with pytest.raises(InvalidArgument, match="request_id"):
        await world.client.start_process(["make"], request_id=request_id)
    assert world.sandbox.asked == []


async def test_a_process_is_started_once_and_answered_with_as_it_is_now(world: World) -> None:
    first = await world.client.start_process(["sleep", "9"], request_id="r1")
    world.sandbox.kept = (replace(world.sandbox.kept[0], running=False, outcome="exited", exit_code=0),)
    again = await world.client.start_process(["sleep", "9"], request_id="r1")
    assert (again.id, again.running, again.exit_code) == (first.id, False, 0)
    assert world.sandbox.count("start") == 1
    world.sandbox.kept = ()
    with pytest.raises(NotFound, match="no longer exists"):
        await world.client.start_process(["sleep", "9"], request_id="r1")
    with pytest.raises(RequestIdReused):
        await world.client.start_process(["sleep", "8"], request_id="r1")
    other = await world.client.start_process(["sleep", "9"], request_id="r2")
    assert other.id != first.id


async def test_a_start_that_failed_is_made_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*args: Any, **given: Any) -> Any:
        raise sandbox_errors.Conflict("another has it")

    with monkeypatch.context() as patched:
        patched.setattr(world.sandbox, "start", refuses)
        with pytest.raises(Conflict):
            await world.client.start_process(["sleep", "9"], process_id="web", request_id="r1")
    started = await world.client.start_process(["sleep", "9"], process_id="web", request_id="r1")
    assert started.id == "web"


async def test_a_start_without_an_id_is_the_call_that_was_approved(world: World) -> None:
    with pytest.raises(ApprovalPending) as caught:
        await world.client.start_process(["serve"])
    approval_id = caught.value.details["approval_id"]
    await world.approvals.resolve(TENANT, approval_id, "allow_once", by="somebody")
    assert (await world.client.start_process(["serve"])).running
    with pytest.raises(ApprovalPending) as caught:
        await world.client.start_process(["serve"])
    assert caught.value.details["approval_id"] != approval_id
    rows = await world.database.rows(select(journal.c.arguments).where(journal.c.state == "finished"))
    assert [json.loads(row.arguments) for row in rows] == [{"command": "serve", "background": True}]


async def test_processes_are_listed_by_whether_they_run_and_in_pages(world: World) -> None:
    started = [await world.client.start_process(["sleep", str(number)]) for number in range(5)]
    kept = world.sandbox.kept
    world.sandbox.kept = tuple(replace(one, running=number % 2 == 0) for number, one in enumerate(kept))

    def ids(found: tuple[Process, ...]) -> list[str]:
        return [one.id for one in found]

    listed = [one.id for one in started]
    assert ids((await world.client.processes()).processes) == listed
    assert ids((await world.client.processes(running=True)).processes) == listed[::2]
    assert ids((await world.client.processes(running=False)).processes) == listed[1::2]
    stub = process_service_pb2_grpc.ProcessServiceStub(world.client._channel)
    pages, token = [], ""
    while True:
        page = await stub.ListProcesses(pb.ListProcessesRequest(page_size=2, page_token=token))
        pages.append([one.id for one in page.processes])
        token = page.next_page_token
        if not token:
            break
    assert pages == [listed[:2], listed[2:4], listed[4:]]
    first = await stub.ListProcesses(pb.ListProcessesRequest(page_size=2))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListProcesses(pb.ListProcessesRequest(page_token=first.next_page_token, running=True))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_of_a_program_whose_end_waits_for_the_database_it_is_said_that_it_is_withheld(world: World) -> None:
    await world.client.run_program(["make"], request_id="r1")
    await world.database.write((update(journal).values(state="executing", result=None), None))
    ((call_id,),) = await world.database.rows(select(journal.c.id))
    late, room = world.service.requested.late, asyncio.Event()

    async def write() -> None:
        await room.wait()

    late.add(UnrecordedCall(call_id, executed=True, said="database or disk is full"), write, tenant="acme")
    with pytest.raises(Unavailable, match="its result is withheld") as raised:
        await world.once.run_program(["make"], request_id="r1")
    assert raised.value.details == {"call_id": call_id, "outcome": "withheld"}
    room.set()
    await late.written()
