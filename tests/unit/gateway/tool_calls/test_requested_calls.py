"""Tool calls with request ids: each runs once, on however many gateways and however often it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from gateway.config.model_settings import ModelSettings
from gateway.errors import AirlockError, Cancelled, InProgress, NotFound, RequestIdReused, Unavailable
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.call_journal import REMEMBERED_US, is_of_request_id
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.store import Store
from gateway.storage.tables import tool_calls as rows
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall
from sandbox.protocols import ExecResult, OutputPiece
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (
    Rule(id="any", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="asked", tools=("execute",), argv=(("git",),), effect="ask", reason="it leaves the sandbox"),
    Rule(id="never", tools=("execute",), argv=(("rm",),), effect="deny", reason="it is gone then"),
)
POLICY = Policy(PolicyDocument(version=1, rules=RULES))
ACME, OTHER = (Tenant(name, POLICY, ModelSettings(), {}) for name in ("acme", "other"))
TRUE = '{"command": "true"}'


class Sandbox:
    """A sandbox whose commands take until they are let go, and print bytes that are no text."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self.free = asyncio.Event()
        self.free.set()
        self.ran = 0
        self.cancelled = 0
        self.shell = self

    def take_ended_processes(self) -> int:
        return 0

    async def execute(self, command: str, **_given: Any) -> ExecResult:
        self.ran += 1
        self.began.put_nowait(command)
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ExecResult("exited", exit_code=3, output=(OutputPiece("stdout", b"out\xff\n"),), output_bytes=5)

    @asynccontextmanager
    async def acquire(self, _spec: Any) -> AsyncIterator[Sandbox]:
        yield self


class FullStore(Store):
    """A store whose database is full for some of what the journal writes."""

    full: tuple[str, ...] = ()

    async def write_tool_call(self, *given: Any, **more: Any) -> None:
        self._write("begin")
        await super().write_tool_call(*given, **more)

    async def write_unexecuted_call(self, *given: Any, **more: Any) -> None:
        self._write("unexecuted")
        await super().write_unexecuted_call(*given, **more)

    async def finish_tool_call(self, *given: Any, **more: Any) -> None:
        self._write("end")
        await super().finish_tool_call(*given, **more)

    def _write(self, what: str) -> None:
        if what in self.full:
            raise Unavailable("the database is locked, full or gone: database or disk is full; try again later")


class Gateway:
    """What a process has of request ids, over a database that others may share."""

    def __init__(self, database: Database, sandbox: Sandbox, linger_s: float = 30.0) -> None:
        self.lingering = 0
        asked = ApprovalStore(database)
        self.store = FullStore(database)
        calls = self.tool_calls = made_tool_calls(database, sandbox, store=self.store, approvals=asked)
        self.calls = RequestedCalls(calls, Store(database), linger_s=linger_s, lingering=self._lingering)

    def _lingering(self, tenant: str) -> Callable[[], None]:
        assert tenant
        self.lingering += 1

        def end() -> None:
            self.lingering -= 1

        return end

    async def call(
        self, request_id: str = "r", arguments: str = TRUE, *, thread: str = "t", tenant: Tenant = ACME, **more: Any
    ) -> FinishedToolCall:
        return await self.calls.call(tenant, NewCall(thread, "execute", arguments), request_id, **more)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox()


def same(one: FinishedToolCall, other: FinishedToolCall) -> bool:
    """Whether two answers are the same on the wire."""
    from gateway.services.tool_service import _result

    return _result(one, "t").SerializeToString(deterministic=True) == _result(other, "t").SerializeToString(
        deterministic=True
    )


async def test_a_repetition_is_answered_with_the_first_result_byte_for_byte(
    database: Database, sandbox: Sandbox
) -> None:
    first = await Gateway(database, sandbox).call()
    again = await Gateway(database, sandbox).call()  # as another process, or this one after a restart, does
    assert sandbox.ran == 1
    assert first.result.content == b"out\xff\n"
    assert same(first, again)


async def test_other_arguments_tools_and_threads_are_refused_under_the_same_id(
    database: Database, sandbox: Sandbox
) -> None:
    gateway = Gateway(database, sandbox)
    await gateway.call()
    for arguments, thread in (('{"command": "false"}', "t"), (TRUE, "u")):
        with pytest.raises(RequestIdReused) as raised:
            await gateway.call(arguments=arguments, thread=thread)
        assert raised.value.violations.keys() == {"request_id"}
    assert sandbox.ran == 1


async def test_an_id_is_the_tenants_own(database: Database, sandbox: Sandbox) -> None:
    gateway = Gateway(database, sandbox)
    await gateway.call()
    await gateway.call(tenant=OTHER)
    assert sandbox.ran == 2


async def test_who_asks_on_the_same_gateway_meanwhile_waits_for_the_same_call(
    database: Database, sandbox: Sandbox
) -> None:
    gateway = Gateway(database, sandbox)
    sandbox.free.clear()
    asked = [asyncio.create_task(gateway.call()) for _ in range(5)]
    await sandbox.began.get()
    with pytest.raises(RequestIdReused):
        await gateway.call(arguments='{"command": "false"}')
    sandbox.free.set()
    answers = await asyncio.gather(*asked)
    assert sandbox.ran == 1
    assert all(same(answers[0], answer) for answer in answers)


async def test_a_caller_on_another_gateway_meanwhile_is_asked_to_retry(database: Database, sandbox: Sandbox) -> None:
    one, other = Gateway(database, sandbox), Gateway(database, sandbox)
    sandbox.free.clear()
    asked = asyncio.create_task(one.call())
    await sandbox.began.get()
    with pytest.raises(InProgress) as raised:
        await other.call()
    assert raised.value.retry_after_s
    sandbox.free.set()
    assert same(await asked, await other.call())
    assert sandbox.ran == 1


async def test_of_many_at_once_on_two_gateways_exactly_one_executes(database: Database, sandbox: Sandbox) -> None:
    gateways = [Gateway(database, sandbox), Gateway(database, sandbox)]
    for number in range(8):
        id_ = f"r{number}"
        answers = await asyncio.gather(*(one.call(id_) for one in gateways * 3), return_exceptions=True)
        assert all(isinstance(one, InProgress | FinishedToolCall) for one in answers), answers
        assert any(isinstance(one, FinishedToolCall) for one in answers)
        assert sandbox.ran == number + 1


async def test_a_call_whose_gateway_was_lost_is_interrupted_and_not_run_again(
    database: Database, sandbox: Sandbox
) -> None:
    await Gateway(database, sandbox).call()
    lost = {"state": "interrupted", "outcome": "interrupted", "result": None}
    await database.write((update(rows).values(**lost), None))
    answer = await Gateway(database, sandbox).call()
    assert (answer.result.outcome, answer.result.is_error, sandbox.ran) == ("interrupted", True, 1)


async def test_a_refusal_is_remembered_and_what_waits_is_not(database: Database, sandbox: Sandbox) -> None:
    gateway = Gateway(database, sandbox)
    refused = await gateway.call("no", '{"command": "rm x"}')
    assert refused.execution.blocked
    assert same(refused, await Gateway(database, sandbox).call("no", '{"command": "rm x"}'))
    waits = await gateway.call("ask", '{"command": "git push"}')
    assert waits.execution.waiting
    approvals = ApprovalStore(database)
    (approval,) = await approvals.page("acme", status=None, thread=None, run_id=None, before=None, limit=2)
    assert approval.status == "pending"
    again = await gateway.call("ask", '{"command": "git push"}')
    assert again.execution.waiting
    journal = await database.rows(select(rows.c.state, rows.c.request_id).order_by(rows.c.started_us))
    assert [tuple(row) for row in journal] == [("blocked", "no"), ("waiting", None), ("waiting", None)]


async def test_a_refusal_is_written_once(database: Database, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    remember = Store.remember

    async def noted(store: Store, *args: Any) -> bool:
        written.append(args)
        return await remember(store, *args)

    monkeypatch.setattr(Store, "remember", noted)
    refused = await Gateway(database, sandbox).call("no", '{"command": "rm x"}')
    assert refused.execution.blocked
    assert written == []
    assert same(refused, await Gateway(database, sandbox).call("no", '{"command": "rm x"}'))
    assert await database.rows(select(rows.c.state, rows.c.request_id)) == [("blocked", "no")]


async def test_only_another_call_with_the_id_is_taken_for_one(database: Database, sandbox: Sandbox) -> None:
    await Gateway(database, sandbox).call()
    (first,) = await database.rows(select(rows))
    for changed, is_of_id in (({"id": "call_2"}, True), ({"request_id": "another"}, False)):
        with pytest.raises(ConstraintViolated) as refused:
            await database.write((insert(rows).values({**first._mapping, **changed}), None))
        assert is_of_request_id(refused.value) is is_of_id


async def test_an_id_is_forgotten_after_a_day(database: Database, sandbox: Sandbox) -> None:
    gateway = Gateway(database, sandbox)
    await gateway.call()
    await database.write((update(rows).values(started_us=rows.c.started_us - REMEMBERED_US), None))
    await gateway.call()
    assert sandbox.ran == 2


async def test_a_caller_who_comes_back_finds_the_call_that_he_left(database: Database, sandbox: Sandbox) -> None:
    gateway = Gateway(database, sandbox)
    sandbox.free.clear()
    left = asyncio.create_task(gateway.call())
    await sandbox.began.get()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert gateway.lingering == 1
    back = asyncio.create_task(gateway.call())
    await asyncio.sleep(0)
    assert gateway.lingering == 0
    sandbox.free.set()
    assert (await back).result.exit_code == 3
    assert (sandbox.ran, sandbox.cancelled) == (1, 0)


@pytest.mark.parametrize("how", ["lingered", "deadline", "deadline soon", "cancel", "close"])
async def test_a_call_whose_caller_does_not_come_back_is_ended(database: Database, sandbox: Sandbox, how: str) -> None:
    gateway = Gateway(database, sandbox, linger_s=0.01 if how == "lingered" else 30.0)
    sandbox.free.clear()
    now_s = asyncio.get_running_loop().time()
    left = asyncio.create_task(
        gateway.call(deadline_s={"deadline": now_s, "deadline soon": now_s + 0.5}.get(how)),
    )
    await sandbox.began.get()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    if how == "cancel":
        with pytest.raises(NotFound):
            gateway.calls.cancel(OTHER, "r")
        gateway.calls.cancel(ACME, "r")
    elif how == "close":
        await gateway.calls.close()
    answer = None
    while answer is None:
        try:
            answer = await Gateway(database, sandbox).call()
        except AirlockError:
            await asyncio.sleep(0.01)
    assert (answer.result.outcome, sandbox.ran, sandbox.cancelled) == ("cancelled", 1, 1)
    while gateway.lingering:  # its record is there a moment before its task is over
        await asyncio.sleep(0)


async def test_the_deadline_of_a_caller_leaves_another_the_time_to_come_back(
    database: Database, sandbox: Sandbox
) -> None:
    gateway = Gateway(database, sandbox)
    sandbox.free.clear()
    patient = asyncio.create_task(gateway.call())
    await sandbox.began.get()
    hasty = asyncio.create_task(gateway.call(deadline_s=asyncio.get_running_loop().time()))
    await asyncio.sleep(0)
    for caller in (patient, hasty):
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    back = asyncio.create_task(gateway.call())
    await asyncio.sleep(0)
    sandbox.free.set()
    assert (await back).result.exit_code == 3
    assert (sandbox.ran, sandbox.cancelled) == (1, 0)


async def test_a_caller_that_waits_for_a_cancelled_call_gets_an_error(database: Database, sandbox: Sandbox) -> None:
    gateway = Gateway(database, sandbox)
    sandbox.free.clear()
    waiting = asyncio.create_task(gateway.call())
    await sandbox.began.get()
    gateway.calls.cancel(ACME, "r")
    with pytest.raises(Cancelled):
        await waiting


async def test_a_call_whose_outcome_waits_for_the_database_is_withheld_from_repetitions_until_it_is_written(
    database: Database, sandbox: Sandbox
) -> None:
    gateway, other = Gateway(database, sandbox), Gateway(database, sandbox)
    gateway.store.full = ("end",)
    with pytest.raises(Unavailable, match="its result is withheld") as first:
        await gateway.call()
    with pytest.raises(Unavailable, match="its result is withheld") as again:
        await gateway.call()
    assert again.value.details == first.value.details
    assert first.value.details["outcome"] == "withheld"
    with pytest.raises(InProgress):
        await other.call()
    gateway.store.full = ()
    await gateway.tool_calls.late.written()
    answer = await other.call()
    assert (answer.execution.call.id, answer.result.exit_code) == (first.value.details["call_id"], 3)
    assert sandbox.ran == 1


async def test_a_request_that_could_not_be_written_down_executes_later_and_leaves_one_record_of_its_attempts(
    database: Database, sandbox: Sandbox
) -> None:
    gateway = Gateway(database, sandbox)
    gateway.store.full = ("begin", "unexecuted")
    for _ in range(5):
        with pytest.raises(Unavailable, match="did not run") as raised:
            await gateway.call()
        assert raised.value.details["outcome"] == "not_executed"
    assert (sandbox.ran, len(gateway.tool_calls.late)) == (0, 1)
    gateway.store.full = ()
    await gateway.tool_calls.late.written()
    assert (await gateway.call()).result.exit_code == 3
    outcomes = await database.rows(select(rows.c.outcome, rows.c.request_id).order_by(rows.c.started_us))
    assert [tuple(row) for row in outcomes] == [("not_executed", None), ("exited", "r")]
