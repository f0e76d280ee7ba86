"""ProcessService over the real way of a tool call and real gRPC, and a sandbox that is made up."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from sqlalchemy import func, select

from agent.hooks.hook import Hook
from agent.state import AgentState
from airlock.v1 import process_service_pb2 as pb
from gateway.client import Client
from gateway.config.model_settings import ModelSettings
from gateway.errors import (
    AirlockError,
    Conflict,
    DeadlineExceeded,
    Exhausted,
    InputGap,
    InputNotTaken,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProcessEnded,
    QuotaExceeded,
    StartFailed,
    Unavailable,
)
from gateway.mcp_servers.places import program_id
from gateway.policy.document import LimitsSection, PolicyDocument, QuotasSection, Rule
from gateway.policy.judge import Policy
from gateway.services import messages, process_service
from gateway.services.process_service import ProcessService
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.storage.tables import audit_records, counters
from gateway.tenancy import quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls import moved_bytes, program_calls
from gateway.tool_calls.requested_calls import RequestedPrograms
from gateway.tool_calls.tool_calls import NewCall, ToolCalls, ToolPath
from gateway.v1 import process_service_pb2_grpc
from sandbox import errors as sandbox_errors
from sandbox.errors import DaemonLost, SandboxError
from sandbox.protocols import (
    ExecResult,
    Process,
    ProcessList,
    ProcessOutput,
    ProcessPage,
    ProcessSpec,
    ProgramResult,
    ProgramSpec,
)
from tests.unit.gateway.made_parts import made_tool_calls

ANY_COMMAND = Rule(id="any", tools=("execute",), effect="allow", reason="a test")
OUTPUT = ProcessOutput(size_bytes=0, ring_offset=0, path="", path_bytes=0, closed=False)


def process(process_id: str = "p") -> Process:
    return Process(
        process_id, 7, (b"sleep", b"\xff"), True, None, None, None, 1_500_000_000, 2_500, False, 0, 0, False, OUTPUT,
        None, 1,
    )  # fmt: skip


class FakeSandbox:
    """A sandbox and its shell and its processes in one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.work: Callable[[dict[str, Any]], Any] = self.nothing
        self.ended = asyncio.Event()
        self.kept: tuple[Process, ...] = ()
        self.strays = 3
        self.shell = self.processes = self

    def take_ended_processes(self) -> int:
        return 0

    async def nothing(self, given: dict[str, Any]) -> ProgramResult:
        return ProgramResult("exited", exit_code=0)

    async def run_program(self, program: ProgramSpec, **given: Any) -> ProgramResult:
        self.asked.append(("run", program.argv))
        try:
            return cast(ProgramResult, await self.work({"program": program, **given}))
        finally:
            self.ended.set()

    async def execute(self, command: str, **given: Any) -> ExecResult:
        self.asked.append(("execute", given["on_output"]))
        return ExecResult("exited", exit_code=0)

    async def start(self, spec: ProcessSpec) -> Process:
        self.asked.append(("start", spec))
        return process(spec.id)

    async def wait(self, process_id: str, *, wait_s: float) -> Process:
        self.asked.append(("wait", wait_s))
        return process(process_id)

    async def read(self, process_id: str, *, offset: int, wait_s: float, **given: Any) -> ProcessPage:
        self.asked.append(("read", wait_s))
        return ProcessPage(b"x" * 10, offset, end=False, size_bytes=offset + 25)

    async def write(self, process_id: str, data: bytes, **given: Any) -> Process:
        self.asked.append(("write", data))
        return process(process_id)

    async def signal(self, process_id: str, number: int, *, tree: bool) -> Process | None:
        self.asked.append(("signal", (process_id, number, tree)))
        return process(process_id) if process_id else None

    async def list(self) -> ProcessList:
        return ProcessList(self.kept, strays=self.strays)


class FakeKeeper:
    def __init__(self, sandbox: FakeSandbox) -> None:
        self.sandbox = sandbox

    lives = True

    @asynccontextmanager
    async def acquire(self, spec: Any) -> AsyncIterator[FakeSandbox]:
        yield self.sandbox

    @asynccontextmanager
    async def acquire_existing(self, spec: Any) -> AsyncIterator[FakeSandbox | None]:
        yield self.sandbox if self.lives else None


class HookedToolCalls(ToolCalls):
    """Tool calls with one more hook, as an operator's build of the gateway may have."""

    hook: Hook | None = None

    def tool_path(self, tenant: Tenant, thread: Thread, run_id: str | None = None, agent: str = "") -> ToolPath:
        path = super().tool_path(tenant, thread, run_id, agent)
        return replace(path, hooks=(*path.hooks, self.hook)) if self.hook is not None else path


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
def keeper(sandbox: FakeSandbox) -> FakeKeeper:
    return FakeKeeper(sandbox)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    database = await Database.open(sqlite_url)
    yield database
    await database.close()


@pytest.fixture
def tool_calls(database: Database, keeper: FakeKeeper) -> HookedToolCalls:
    return made_tool_calls(database, keeper, kind=HookedToolCalls)


TENANT = Tenant(
    "t", Policy(PolicyDocument(version=1, rules=(ANY_COMMAND,), limits=LimitsSection(timeout_s=5))), ModelSettings(), {}
)

SERVED = {"t": TENANT}


@pytest.fixture
async def client(tool_calls: HookedToolCalls, database: Database) -> AsyncIterator[Client]:
    async def authenticate(context: Any) -> Tenant:
        return SERVED["t"]

    server = grpc.aio.server()
    service = ProcessService(tool_calls, authenticate, RequestedPrograms(Store(database), tool_calls.late))
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "key") as made:
        yield made
    await server.stop(None)


class Redacts(Hook):
    name = "redacts"
    redacts = True

    async def after_tool_use(self, state: AgentState) -> AgentState:
        return state


class Rewrites(Hook):
    name = "rewrites"

    async def before_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        call = tool.call.model_copy(update={"arguments": {**(tool.call.arguments or {}), "command": "ls"}})
        return state.with_(current=state.current.with_tool(replace(tool, call=call)))


async def test_where_a_hook_redacts_nothing_is_streamed(
    client: Client, tool_calls: HookedToolCalls, sandbox: FakeSandbox
) -> None:
    tool_calls.hook = Redacts()
    for call in (client.run_program(["env"]), client.start_process(["env"])):
        with pytest.raises(PermissionDenied, match="has to see the whole result"):
            await call
    heard: list[bytes] = []
    new = NewCall("t", "execute", '{"command": "env"}', on_output=lambda _, data: heard.append(data))
    await tool_calls.call(TENANT, new)
    assert sandbox.asked == [("execute", None)]


async def test_a_line_that_a_hook_rewrote_runs_neither_as_it_was_nor_as_it_is(
    client: Client, tool_calls: HookedToolCalls, sandbox: FakeSandbox
) -> None:
    tool_calls.hook = Rewrites()
    with pytest.raises(PermissionDenied, match="rewrote"):
        await client.run_program(["rm", "x"])
    assert sandbox.asked == []


async def test_without_a_limit_of_its_own_a_program_has_the_policys(client: Client, sandbox: FakeSandbox) -> None:
    given: dict[str, Any] = {}

    async def look(asked: dict[str, Any]) -> ProgramResult:
        given.update(asked)
        return ProgramResult("exited", exit_code=0)

    sandbox.work = look
    await client.run_program(["ls"])
    assert (given["program"].timeout_s, given["stdin"], given["program"].cwd) == (5, None, "/workspace")
    await client.run_program(["ls"], timeout_s=0.25, cwd="/tmp/..")
    assert (given["program"].timeout_s, given["program"].cwd) == (0.25, "/")


async def test_unread_output_is_a_few_pieces_and_no_more(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: asyncio.Queue[Any] = asyncio.Queue(2)
    monkeypatch.setattr(program_calls, "_GRACE_S", 0.0)
    run = program_calls.ProgramRun(cast(Any, None), cast(Any, None), pieces, stdin=None)
    run._deadline_s = asyncio.get_running_loop().time() + 0.05
    await run._take("stdout", b"1")
    await run._take("stderr", b"2")
    with pytest.raises(DeadlineExceeded, match="not read"):
        await run._take("stdout", b"3")
    assert pieces.qsize() == 2


async def test_a_client_that_goes_away_cancels_the_program(client: Client, sandbox: FakeSandbox) -> None:
    begun = asyncio.Event()

    async def endless(given: dict[str, Any]) -> ProgramResult:
        begun.set()
        while True:
            await given["on_output"]("stdout", b"x" * 100_000)

    sandbox.work = endless

    async def never(stream: str, data: bytes) -> None:
        await asyncio.Event().wait()

    call = asyncio.create_task(client.run_program(["yes"], on_output=never))
    await begun.wait()
    call.cancel()
    async with asyncio.timeout(10):
        await sandbox.ended.wait()
    assert (await asyncio.gather(call, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_the_callers_deadline_ends_the_program(client: Client, sandbox: FakeSandbox) -> None:
    began = asyncio.Event()

    async def endless(given: dict[str, Any]) -> ProgramResult:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    sandbox.work = endless
    # On a busy machine a deadline may pass before the program begins, which would show nothing.
    call = client._method(pb.RunProgramRequest)(timeout=2.0)
    await call.write(pb.RunProgramRequest(run=pb.RunProgram(program=pb.Program(argv=["sleep", "9"]))))
    await began.wait()
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(10):
        await sandbox.ended.wait()


async def _silent() -> AsyncIterator[pb.RunProgramRequest]:
    await asyncio.Event().wait()
    yield pb.RunProgramRequest()


async def test_a_peer_that_only_connects_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "STALL_LIMIT_S", 0.01)
    with pytest.raises(DeadlineExceeded, match="`run`"):
        await process_service._opening(_silent())


async def test_a_sandbox_that_is_lost_is_an_outcome_of_a_program_and_an_error_of_a_start(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(given: dict[str, Any]) -> ProgramResult:
        await given["on_output"]("stdout", b"some")
        return ProgramResult("daemon_lost", message="gone", output_bytes=4)

    sandbox.work = lost
    result = await client.run_program(["ls"])
    assert (result.outcome, result.message, result.stdout, result.exit_code) == ("daemon_lost", "gone", "some", None)

    async def start(*args: Any, **given: Any) -> Process:
        raise DaemonLost("gone")

    monkeypatch.setattr(sandbox, "start", start)
    with pytest.raises(Unavailable, match="gone"):
        await client.start_process(["ls"])


async def test_a_process_is_started_as_it_was_asked(client: Client, sandbox: FakeSandbox) -> None:
    started = await client.start_process(["sh"], terminal=True, rows=10, columns=20, timeout_s=1.5, env={"A": "b"})
    terminal = {"terminal": True, "rows": 10, "columns": 20}
    expected = ProcessSpec(started.id, [b"sh"], env={"A": "b"}, cwd="/workspace", timeout_s=1.5, **terminal)
    assert sandbox.asked[0] == ("start", expected)
    assert (started.argv, started.duration_ms, started.started_at.timestamp()) == (("sleep", "\ufffd"), 2.5, 1.5)
    plain = await client.start_process(["sh"], process_id="mine", merge_stderr=True, stdin=True)
    assert plain.id == "mine"
    assert sandbox.asked[1][1].timeout_s is None


async def test_a_wait_answers_before_the_callers_own_deadline(client: Client, sandbox: FakeSandbox) -> None:
    assert (await client.wait_process("t", "p", timeout_s=0)).running
    (kind, waited_s), *_ = sandbox.asked
    assert kind == "wait"
    assert 0 <= waited_s <= 1.0


async def test_a_read_without_follow_ends_where_the_output_ended_when_it_began(
    client: Client, sandbox: FakeSandbox
) -> None:
    pieces = [piece async for piece in client.process_output("t", "p", offset=5)]
    assert [piece.offset for piece in pieces] == [5, 15, 25]
    assert {waited_s for _, waited_s in sandbox.asked} == {0.0}


async def test_of_each_stream_it_is_known_what_its_file_holds_and_whether_more_can_come(
    client: Client, sandbox: FakeSandbox
) -> None:
    stdout = ProcessOutput(size_bytes=9, ring_offset=5, path="/o", path_bytes=4, closed=True)
    sandbox.kept = (replace(process(), stdout=stdout), replace(process("q"), stderr=replace(stdout, closed=False)))
    first, second = (await client.processes("t")).processes
    assert (first.stdout_size_bytes, first.stdout_path, first.stdout_path_bytes, first.stdout_closed) == (
        9,
        "/o",
        4,
        True,
    )
    assert (first.stderr_size_bytes, first.stderr_path_bytes, first.stderr_closed) == (0, 0, True)
    assert (second.stdout_closed, second.stderr_path_bytes, second.stderr_closed) == (False, 4, False)


def failed(kind: type[SandboxError], number: int | None) -> SandboxError:
    error = kind("why")
    error.errno = number
    return error


@pytest.mark.parametrize(
    "cause, kind, details",
    [
        (failed(sandbox_errors.NotFound, 2), StartFailed, {"outcome": "failed_to_start", "errno": "2"}),
        (failed(sandbox_errors.PermissionDenied, 13), StartFailed, {"outcome": "failed_to_start", "errno": "13"}),
        (failed(sandbox_errors.InvalidArgument, 8), StartFailed, {"outcome": "failed_to_start", "errno": "8"}),
        (failed(sandbox_errors.Exhausted, 11), StartFailed, {"outcome": "pids_limit", "errno": "11"}),
        (failed(sandbox_errors.FileError, None), StartFailed, {"outcome": "failed_to_start"}),
        (failed(sandbox_errors.InvalidArgument, None), InvalidArgument, {}),
        (failed(sandbox_errors.Exhausted, None), Exhausted, {}),
        (failed(sandbox_errors.Conflict, None), Conflict, {}),
        (failed(sandbox_errors.DaemonLost, None), Unavailable, {}),
    ],
)
async def test_why_a_process_did_not_start_is_distinguished_from_a_refusal_and_an_unknown_id(
    client: Client,
    sandbox: FakeSandbox,
    monkeypatch: pytest.MonkeyPatch,
    cause: SandboxError,
    kind: type[AirlockError],
    details: dict[str, str],
) -> None:
    async def start(*args: Any, **given: Any) -> Process:
        raise cause

    monkeypatch.setattr(sandbox, "start", start)
    with pytest.raises(AirlockError, match="why") as caught:
        await client.start_process(["ls"])
    assert (type(caught.value), caught.value.details) == (kind, details)


async def test_an_id_in_use_and_too_many_that_run_are_two_errors(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*args: Any, **given: Any) -> Process:
        raise sandbox_errors.Conflict("why")

    monkeypatch.setattr(sandbox, "start", start)
    sandbox.kept = tuple(process(f"p{number}") for number in range(64))
    with pytest.raises(Exhausted):
        await client.start_process(["ls"], process_id="new")
    with pytest.raises(Conflict):
        await client.start_process(["ls"], process_id="p5")


@pytest.mark.parametrize("closed, kind", [(False, InputNotTaken), (True, ProcessEnded)])
async def test_of_input_that_was_taken_in_part_it_is_known_how_much_was(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch, *, closed: bool, kind: type[AirlockError]
) -> None:
    async def write(*args: Any, **given: Any) -> Process:
        raise sandbox_errors.InputNotTaken("a part", taken_bytes=65_536, closed=closed)

    monkeypatch.setattr(sandbox, "write", write)
    with pytest.raises(kind) as caught:
        await client.write_process("t", "p", b"x")
    assert caught.value.details == {"taken_bytes": "65536"}


async def test_input_that_begins_past_what_was_taken_is_refused_with_how_much_that_is(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(process_id: str, data: bytes, **given: Any) -> Process:
        assert (given["offset"], given["request_id"]) == (9, "mine")
        raise sandbox_errors.InputGap("a gap", stdin_taken_bytes=5)

    monkeypatch.setattr(sandbox, "write", write)
    with pytest.raises(InputGap) as caught:
        await client.write_process("t", "p", b"x", offset=9, request_id="mine")
    assert caught.value.details == {"stdin_taken_bytes": "5"}


async def test_the_client_makes_a_write_again_as_the_same_one(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []

    async def write(process_id: str, data: bytes, **given: Any) -> Process:
        ids.append(given["request_id"])
        assert given["offset"] is None
        if len(ids) < 3:
            raise DaemonLost("the answer is lost")
        return replace(process(process_id), stdin_taken_bytes=1)

    monkeypatch.setattr(sandbox, "write", write)
    assert (await client.write_process("t", "p", b"x")).stdin_taken_bytes == 1
    assert (len(ids), len(set(ids)), bool(ids[0])) == (3, 1, True)


async def test_the_input_of_an_mcp_server_is_calls_of_its_tools_and_nothing_else(
    client: Client, sandbox: FakeSandbox
) -> None:
    server = program_id("notes", "0123456789abcdef")
    for refused in (
        client.write_process("t", server, b'{"method": "tools/call"}'),
        client.write_process("t", server, b"", end=True),
        client.start_process(["cat"], thread="t", process_id=server, stdin=True),
    ):
        with pytest.raises(
            InvalidArgument, match=r"ids like mcp-NAME-01234567 are reserved for MCP servers: call their tools"
        ):
            await refused
    assert sandbox.asked == []
    await client.signal_process("t", server, 15)
    await client.write_process("t", "mcp-notes", b"x")


async def test_a_signal_to_a_process_that_has_ended_is_no_conflict(
    client: Client, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def signal(*args: Any, **given: Any) -> Process:
        raise failed(sandbox_errors.Conflict, 3)

    monkeypatch.setattr(sandbox, "signal", signal)
    with pytest.raises(ProcessEnded):
        await client.signal_process("t", "p", 15)


async def test_strays_are_killed_by_a_call_of_their_own_and_never_by_an_empty_id(
    client: Client, sandbox: FakeSandbox
) -> None:
    with pytest.raises(InvalidArgument, match="id"):
        await client.signal_process("t", "", 9, tree=True)
    assert sandbox.asked == []
    assert await client.kill_strays("t") == 3
    assert sandbox.asked == [("signal", ("", 9, True))]


async def test_where_there_are_no_strays_nothing_is_killed_and_nothing_recorded(
    client: Client, sandbox: FakeSandbox, database: Database
) -> None:
    sandbox.strays = 0
    assert [await client.kill_strays("t") for _ in range(3)] == [0, 0, 0]
    assert sandbox.asked == []
    assert await _operations(database) == []
    sandbox.strays = 2
    assert await client.kill_strays("t") == 2
    assert await _operations(database) == ["kill_strays"]


async def test_what_is_done_to_processes_has_its_place_in_the_tenants_minute(
    client: Client, sandbox: FakeSandbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(PolicyDocument(version=1, rules=(ANY_COMMAND,), quotas=QuotasSection(tool_calls_per_minute=2)))
    monkeypatch.setitem(SERVED, "t", Tenant("t", policy, ModelSettings(), {}))

    async def asked(*_: Any, **__: Any) -> Process:
        return process()

    monkeypatch.setattr(sandbox, "resize", asked, raising=False)
    monkeypatch.setattr(sandbox, "remove", asked, raising=False)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: client.write_process("t", "p", b"x"),
        lambda: client.signal_process("t", "p", 15),
        lambda: client.resize_process("t", "p", 1, 1),
        lambda: client.remove_process("t", "p"),
        lambda: client.kill_strays("t"),
    ]
    # Whenever a minute begins, more than it holds is asked for.
    ended = [await asyncio.gather(attempt(), return_exceptions=True) for attempt in attempts * 2]
    refused = [one for (one,) in ended if isinstance(one, QuotaExceeded)]
    assert {one.details["quota"] for one in refused} == {"tool_calls_per_minute"}
    done = await _operations(database)
    assert len(done) == len(ended) - len(refused)
    assert set(done) <= {"write", "signal", "resize", "remove", "kill_strays"}


def _limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> QuotasSection:
    """Give the tenant quotas."""
    section = QuotasSection(**limits)
    policy = Policy(PolicyDocument(version=1, rules=(ANY_COMMAND,), quotas=section))
    monkeypatch.setitem(SERVED, "t", Tenant("t", policy, ModelSettings(), {}))
    return section


async def test_past_the_tenants_stored_bytes_processes_are_only_ended(
    client: Client, sandbox: FakeSandbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_STORED_KNOWN_S", -1.0)
    await client.run_program(["ls"], thread="t")  # whose row in the journal is more than the quota
    _limited(monkeypatch, stored_bytes=1)

    async def asked(*_: Any, **__: Any) -> Process:
        return process()

    monkeypatch.setattr(sandbox, "resize", asked, raising=False)
    monkeypatch.setattr(sandbox, "remove", asked, raising=False)
    for change in (
        client.write_process("t", "p", b"x"),
        client.signal_process("t", "p", 15),
        client.resize_process("t", "p", 1, 1),
    ):
        with pytest.raises(QuotaExceeded) as caught:
            await change
        assert caught.value.details["quota"] == "stored_bytes"
    assert await _operations(database) == []
    await client.write_process("t", "p", b"", end=True)
    await client.signal_process("t", "p", signal.SIGKILL)
    await client.remove_process("t", "p")
    await client.kill_strays("t")
    assert await _operations(database) == ["write", "signal", "remove", "kill_strays"]


async def test_bytes_to_and_from_processes_are_counted_and_refuse_more_of_them(
    client: Client, sandbox: FakeSandbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited(monkeypatch, bytes_per_day=50)

    async def reads(given: dict[str, Any]) -> ProgramResult:
        async for _ in given["stdin"]:
            pass
        return ProgramResult("exited", exit_code=0)

    async def used() -> int:
        whose = counters.c.tenant == "t", counters.c.name == "bytes_per_day"
        return int(await database.scalar(select(func.coalesce(func.sum(counters.c.used), 0)).where(*whose)))

    sandbox.work = reads
    await client.run_program(["cat"], thread="t", stdin=b"x" * 7)
    assert await used() == 7
    await client.write_process("t", "p", b"x" * 11)
    assert await used() == 18
    assert [len(piece.data) async for piece in client.process_output("t", "p")] == [10, 10, 10]
    assert await used() == 48
    async for _ in client.process_output("t", "p", follow=True):
        break  # what a caller that leaves was sent is counted too
    async with asyncio.timeout(10):
        while await used() < 58:
            await asyncio.sleep(0.01)
    await client.write_process("t", "p", b"", end=True)  # moves nothing
    asked = len(sandbox.asked)
    for refused in (client.write_process("t", "p", b"x"), anext(client.process_output("t", "p"))):
        with pytest.raises(QuotaExceeded) as caught:
            await refused
        assert caught.value.details["quota"] == "bytes_per_day"
    assert len(sandbox.asked) == asked


async def test_output_that_is_followed_for_long_is_counted_in_sums_and_ends_with_the_days_bytes(
    client: Client, tool_calls: HookedToolCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited(monkeypatch, bytes_per_day=250)
    monkeypatch.setattr(moved_bytes, "_SUM_BYTES", 100)
    sums: list[int] = []
    add = tool_calls.quotas.add

    async def noted(tenant: str, limits: QuotasSection, amounts: Mapping[str, int]) -> None:
        sums.append(amounts["bytes_per_day"])
        await add(tenant, limits, amounts)

    monkeypatch.setattr(tool_calls.quotas, "add", noted)
    with pytest.raises(QuotaExceeded, match="bytes_per_day"):
        async for piece in client.process_output("t", "p", follow=True):
            assert piece.offset < 1000, "it goes on"
    assert sums == [100, 100, 100]


async def _operations(database: Database) -> list[str]:
    query = select(audit_records.c.details).where(audit_records.c.kind == "process")
    found = [json.loads(row.details) for row in await database.rows(query)]
    return [one["operation"] for one in found if "operation" in one]


async def test_where_no_sandbox_lives_there_are_no_processes_and_looking_makes_none(
    client: Client, sandbox: FakeSandbox, keeper: FakeKeeper
) -> None:
    keeper.lives = False
    found = await client.processes("t")
    assert (found.processes, found.strays, await client.kill_strays("t")) == ((), 0, 0)
    for call in (
        client.write_process("t", "p", b"x"),
        client.wait_process("t", "p", timeout_s=1),
        client.resize_process("t", "p", 1, 1),
        client.signal_process("t", "p", 9),
        client.remove_process("t", "p"),
        anext(client.process_output("t", "p")),
    ):
        with pytest.raises(NotFound, match="'p'"):
            await call
    assert sandbox.asked == []


async def test_what_the_client_is_given_wrongly_is_one_clear_error_and_nothing_is_asked(
    client: Client, sandbox: FakeSandbox
) -> None:
    wrong: Any = 5
    for call in (
        client.run_program("ls -l"),
        client.run_program(wrong),
        client.run_program(["ls", wrong]),
        client.run_program(["ls"], env=wrong),
        client.run_program(["ls"], stdin=wrong),
        client.run_program(["cat"], stdin=cast(Any, "text")),
        client.run_program(["ls"], output_limit_bytes=-1),
        *(client.run_program(["ls"], timeout_s=limit) for limit in (float("nan"), float("inf"), 1e9, -1, 0)),
        client.start_process("ls -l"),
        client.start_process(["ls"], terminal=True, rows=-1),
        client.write_process("t", "p", cast(Any, "text")),
        client.write_process("t", "p", b"x", timeout_s=float("nan")),
        client.wait_process("t", "p", timeout_s=float("nan")),
        client.signal_process("t", "p", -1),
        client.resize_process("t", "p", -1, 1),
        client.call_tool("ls", {"path": {1}}),
        client.write_file("t", "f", wrong),
        anext(client.process_output("t", "p", offset=-1)),
    ):
        with pytest.raises(InvalidArgument):
            await call
    assert sandbox.asked == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_input_may_be_any_kind_of_bytes(
    client: Client, sandbox: FakeSandbox, kind: Callable[[bytes], Any]
) -> None:
    async def read(given: dict[str, Any]) -> ProgramResult:
        await given["on_output"]("stdout", b"".join([piece async for piece in given["stdin"]]))
        return ProgramResult("exited", exit_code=0)

    sandbox.work = read
    data = bytes(range(256)) * 4096
    assert (await client.run_program(["cat"], stdin=kind(data))).stdout_bytes == data
    await client.write_process("t", "p", kind(data))
    assert sandbox.asked[-1] == ("write", data)


async def test_a_client_that_was_closed_says_so() -> None:
    async with Client("127.0.0.1:1", "key") as closed:
        pass
    for call in (closed.processes(), closed.run_program(["ls"]), anext(closed.process_output("t", "p"))):
        with pytest.raises(Unavailable, match="closed"):
            await call
