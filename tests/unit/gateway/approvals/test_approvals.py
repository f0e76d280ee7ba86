"""Approvals of the calls of services: asked, answered and used, on a real SQLite file."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import yaml
from structlog.testing import capture_logs

from agent.messages import ToolResult
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext
from gateway.approvals.approvals import Approvals
from gateway.approvals.approver import call_digest
from gateway.config.model_settings import ModelSettings
from gateway.errors import AlreadyResolved, ApprovalPending, EditRefused, InvalidArgument, NotFound, QuotaExceeded
from gateway.policy.document import LimitsSection, PolicyDocument, QuotasSection, Rate, Rule
from gateway.policy.judge import Policy
from gateway.storage import approval_store
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.support.clock import make_id
from gateway.support.heavy_work import HeavyWork, Work
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (
    Rule(id="all", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="close-call", tools=("execute",), argv=(("git", "push"),), effect="ask", reason="it leaves the sandbox"),
    Rule(id="never", tools=("execute",), argv=(("git", "push", "--force"),), effect="deny", reason="history"),
)
PUSH = {"command": "git push origin main"}


def tenant(name: str = "acme", *, note: str = "") -> Tenant:
    """Return a tenant; another note is another version of its policy."""
    document = PolicyDocument(version=1, description=note, rules=RULES, limits=LimitsSection(approval_s=60))
    return Tenant(name, Policy(document), ModelSettings(), {})


ACME = tenant()


class Clock:
    """A clock that tests move."""

    now_us = 1_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)


class Executions(ServiceExecutor, list[dict[str, Any]]):
    """Stands in for the tools: it keeps what ran."""

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        self.append(dict(call.call.arguments or {}))
        return ToolResult(b"pushed", outcome="exited", exit_code=0)


class Desk:
    """All that is under test, on one database."""

    def __init__(self, database: Database, clock: Clock, quotas: Quotas | None = None) -> None:
        self.clock = clock
        self.store = ApprovalStore(database, clock=clock)
        self.journal = Store(database, clock=clock)
        self.tool_calls = made_tool_calls(database, store=self.journal, approvals=self.store, quotas=quotas)
        self.approvals = Approvals(self.store, self.tool_calls.prepare, poll_s=0.01)
        self.ran = Executions()

    async def call(
        self, arguments: dict[str, Any] | None = None, by: Tenant = ACME, thread: str = "t"
    ) -> FinishedToolCall:
        new = NewCall(thread, "execute", arguments or PUSH, executor=self.ran)
        return await self.tool_calls.call(by, new)

    async def ask(self, arguments: dict[str, Any] | None = None) -> str:
        finished = await self.call(arguments)
        assert finished.execution.waiting
        return finished.execution.approval_id


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database, Clock())


def said(finished: FinishedToolCall) -> str:
    return finished.result.text()


async def test_a_call_that_is_asked_about_does_not_run_and_names_its_approval(desk: Desk) -> None:
    finished = await desk.call()
    assert desk.ran == []
    assert finished.result.outcome == "waiting"
    approval = await desk.approvals.get(ACME, finished.execution.approval_id)
    assert (approval.status, approval.rule, approval.tool) == ("pending", "close-call", "execute")
    assert json.loads(approval.arguments) == PUSH
    assert list(approval.asked_parts) == ["git push origin main"]
    assert approval.digest == call_digest("acme", finished.execution.judged, ACME.policy.version)
    row = await desk.journal.tool_call("acme", finished.execution.call.id)
    assert row is not None
    assert (row["state"], row["verdict"], row["approval_id"]) == ("waiting", "ask", approval.id)
    with pytest.raises(ApprovalPending) as raised:
        finished.raise_waiting()
    assert raised.value.details == {"approval_id": approval.id}


async def test_the_same_call_is_asked_about_once(desk: Desk) -> None:
    finished = await asyncio.gather(*(desk.call() for _ in range(10)))
    assert len({one.execution.approval_id for one in finished}) == 1
    assert (await desk.call(thread="another")).execution.approval_id != finished[0].execution.approval_id


async def test_an_approved_call_runs_once(desk: Desk) -> None:
    approval_id = await desk.ask()
    resolved = await desk.approvals.resolve(ACME, approval_id, "allow_once", by="airlock_ab..")
    assert (resolved.status, resolved.resolved_by) == ("approved", "airlock_ab..")
    finished = await desk.call()
    assert desk.ran == [PUSH]
    assert finished.execution.approval_id == approval_id
    row = await desk.journal.tool_call("acme", finished.execution.call.id)
    assert row is not None
    assert (row["state"], row["verdict"], row["approval_id"]) == ("finished", "ask", approval_id)
    assert (await desk.approvals.get(ACME, approval_id)).status == "used"
    assert await desk.ask() != approval_id
    assert len(desk.ran) == 1


async def test_one_of_many_racing_calls_uses_the_approval(desk: Desk) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "allow_once", by="k")
    finished = await asyncio.gather(*(desk.call() for _ in range(20)))
    assert len(desk.ran) == 1
    assert sum(one.execution.succeeded for one in finished) == 1


async def test_the_first_of_fifty_answers_counts(desk: Desk, database: Database) -> None:
    approval_id = await desk.ask()
    desks = [desk, Desk(database, desk.clock)]
    answers = ["allow_once", "deny"] * 25

    async def answer(number: int) -> str:
        try:
            await desks[number % 2].approvals.resolve(ACME, approval_id, answers[number], by=f"key{number}")
        except AlreadyResolved as late:
            return "" if late.details["resolved_by"] else "nobody"
        return f"key{number}"

    winners = [key for key in await asyncio.gather(*(answer(number) for number in range(50))) if key]
    assert len(winners) == 1
    assert (await desk.approvals.get(ACME, approval_id)).resolved_by == winners[0]


async def test_the_same_answer_of_the_same_approver_again_is_the_answer_that_was_given(desk: Desk) -> None:
    approval_id = await desk.ask()
    first = await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k", message="fine")
    assert await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k", message="fine") == first
    grants, _ = await desk.approvals.grants(ACME, thread="", include_ended=True, size=0, token="")
    assert len(grants) == 1
    for answer, by, message in (
        ("deny", "k", "fine"),
        ("allow_once", "k", "fine"),
        ("allow_thread", "other", "fine"),
        ("allow_thread", "k", ""),
    ):
        with pytest.raises(AlreadyResolved):
            await desk.approvals.resolve(ACME, approval_id, answer, by=by, message=message)
    assert not (await desk.call()).execution.blocked
    used = await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k", message="fine")
    assert used.status == "used"


async def test_an_edit_is_the_same_answer_with_the_same_arguments_only(desk: Desk) -> None:
    approval_id = await desk.ask()
    edited, other = (json.dumps({"command": f"git push origin {branch}"}) for branch in ("draft", "topic"))
    first = await desk.approvals.resolve(ACME, approval_id, "edit", by="k", arguments_json=edited)
    assert await desk.approvals.resolve(ACME, approval_id, "edit", by="k", arguments_json=edited) == first
    with pytest.raises(AlreadyResolved):
        await desk.approvals.resolve(ACME, approval_id, "edit", by="k", arguments_json=other)


async def test_a_refusal_keeps_its_words_and_its_effect(desk: Desk) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "deny", by="k", message="use a branch")
    for _ in range(2):
        finished = await desk.call()
        assert finished.execution.blocked
        assert "an approver denied the call: use a branch" in said(finished)
    desk.clock.pass_s(61)
    assert await desk.ask() != approval_id
    assert desk.ran == []


async def test_what_is_not_answered_in_time_is_no_approval(desk: Desk) -> None:
    approval_id = await desk.ask()
    desk.clock.pass_s(61)
    assert (await desk.approvals.get(ACME, approval_id)).status == "expired"
    with pytest.raises(AlreadyResolved, match="not answered in time"):
        await desk.approvals.resolve(ACME, approval_id, "allow_once", by="k")
    assert await desk.ask() != approval_id


async def test_an_approval_is_not_kept_for_later(desk: Desk) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "allow_once", by="k")
    desk.clock.pass_s(61)
    assert await desk.ask() != approval_id
    assert desk.ran == []


async def test_another_policy_asks_anew(desk: Desk) -> None:
    await desk.approvals.resolve(ACME, await desk.ask(), "allow_once", by="k")
    finished = await desk.call(by=tenant(note="stricter by now"))
    assert finished.execution.waiting
    assert desk.ran == []


async def test_other_arguments_are_another_call(desk: Desk) -> None:
    await desk.approvals.resolve(ACME, await desk.ask(), "allow_once", by="k")
    assert (await desk.call({"command": "git push origin release"})).execution.waiting


async def test_a_deny_needs_no_approver(desk: Desk) -> None:
    finished = await desk.call({"command": "git push --force"})
    assert finished.execution.blocked
    assert finished.execution.approval_id == ""


async def test_edited_arguments_are_judged_off_the_event_loop_in_a_turn_of_their_tenant(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    judge, prepare, work = Policy.judge, desk.tool_calls.prepare, HeavyWork()

    def judged(self: Policy, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return judge(self, *arguments)

    def prepared(tenant: Tenant, call: Any) -> JudgedCall:
        threads.append(threading.get_ident())
        return cast(JudgedCall, prepare(tenant, call))

    def work_of(tenant: str) -> Work:
        assert tenant == "acme"
        return work.of(tenant)

    approval_id = await desk.ask()
    desk.approvals.prepare, desk.approvals.work_of = prepared, work_of
    monkeypatch.setattr(Policy, "judge", judged)
    edited = json.dumps({"command": "git push origin draft"})
    for answers in (1, 2):
        await desk.approvals.resolve(ACME, approval_id, "edit", by="k", arguments_json=edited)
        assert len(threads) == answers + 1  # prepared and judged, then only prepared
    assert threading.get_ident() not in threads
    work.close()


async def test_edited_arguments_are_judged_and_are_what_may_run(desk: Desk) -> None:
    approval_id = await desk.ask()
    with pytest.raises(EditRefused, match="never"):
        await desk.approvals.resolve(
            ACME, approval_id, "edit", by="k", arguments_json='{"command": "git push --force"}'
        )
    assert (await desk.approvals.get(ACME, approval_id)).status == "pending"
    edited = {"command": "git push origin draft"}
    await desk.approvals.resolve(ACME, approval_id, "edit", by="k", arguments_json=json.dumps(edited))
    refused = await desk.call()
    assert "make the call with these" in said(refused)
    assert json.loads(refused.edited_arguments)["command"] == "git push origin draft"
    assert desk.ran == []
    stored = (await desk.approvals.get(ACME, approval_id)).edited_arguments
    finished = await desk.call(json.loads(stored or ""))
    assert finished.execution.succeeded
    assert desk.ran == [json.loads(stored or "")]
    assert finished.edited_arguments == ""
    again = await desk.call()
    assert (again.execution.waiting, again.edited_arguments) == (True, "")


@pytest.mark.parametrize(
    "answer, more, why",
    [
        ("maybe", {}, "answer: one of"),
        ("deny", {"message": "x" * 2001}, "2,000 characters"),
        ("deny", {"arguments_json": "{}"}, "arguments_json"),
        ("edit", {}, "arguments_json"),
        ("edit", {"arguments_json": "[]"}, "a JSON object is expected"),
        ("edit", {"arguments_json": "{"}, "not JSON"),
        ("edit", {"arguments_json": '{"comand": "ls"}'}, "comand"),
        ("allow_run", {}, "belongs to no run"),
    ],
)
async def test_a_bad_answer_says_what_is_wrong(desk: Desk, answer: str, more: dict[str, str], why: str) -> None:
    approval_id = await desk.ask({"command": "git push a; git push b; git push c"})
    with pytest.raises(InvalidArgument, match=why):
        await desk.approvals.resolve(ACME, approval_id, answer, by="k", **more)
    assert (await desk.approvals.get(ACME, approval_id)).status == "pending"


async def test_a_granted_rule_lets_the_same_calls_of_the_thread_pass(desk: Desk) -> None:
    approval_id = await desk.ask()
    proposed = (await desk.approvals.get(ACME, approval_id)).proposed_rule
    assert yaml.safe_load(proposed or "")[0]["argv"] == [["git", "push", "origin", "main", {"end": True}]]
    await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    for _ in range(3):
        assert (await desk.call()).execution.succeeded
    assert len(desk.ran) == 3
    assert (await desk.call({"command": "git push origin main --tags"})).execution.waiting
    assert (await desk.call(thread="another")).execution.waiting
    assert (await desk.call({"command": "git push --force"})).execution.blocked


async def test_each_grant_is_parsed_once_and_off_the_event_loop(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    threads: set[int] = set()
    load = yaml.safe_load

    def counted(text: str) -> Any:
        parsed.append(text)
        threads.add(threading.get_ident())
        return load(text)

    monkeypatch.setattr(yaml, "safe_load", counted)
    pushes = [{"command": f"git push {make_id('branch')}"} for _ in range(4)]
    for push in pushes:
        await desk.approvals.resolve(ACME, await desk.ask(push), "allow_thread", by="k")
        assert (await desk.call(push)).execution.succeeded
    grants, _ = await desk.approvals.grants(ACME, thread="t", include_ended=False, size=0, token="")
    assert sorted(parsed) == sorted(grant.rule for grant in grants)
    await desk.approvals.revoke(ACME, grants[0].id, by="k")
    assert [(await desk.call(push)).execution.waiting for push in pushes] == [False, False, False, True]
    assert len(parsed) == 4
    assert threading.get_ident() not in threads


async def test_a_thread_has_so_many_grants_and_no_more_until_one_is_revoked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_store, "GRANTS_LIMIT", 3)
    for number in range(3):
        await desk.approvals.resolve(ACME, await desk.ask({"command": f"git push {number}"}), "allow_thread", by="k")
    approval_id = await desk.ask()
    with pytest.raises(InvalidArgument, match=r"thread has .*airlock approvals revoke ID"):
        await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    assert (await desk.approvals.get(ACME, approval_id)).status == "pending"
    other = (await desk.call(thread="another")).execution.approval_id
    await desk.approvals.resolve(ACME, other, "allow_thread", by="k")
    grants, _ = await desk.approvals.grants(ACME, thread="t", include_ended=False, size=0, token="")
    assert len(grants) == 3
    await desk.approvals.revoke(ACME, grants[0].id, by="k")
    await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    assert (await desk.call()).execution.succeeded


async def test_a_granted_call_names_its_approval_which_its_own_call_uses_up(desk: Desk) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    other = await desk.call({"command": "git push origin main", "timeout_s": 5})
    assert (other.execution.succeeded, other.execution.approval_id) == (True, approval_id)
    assert (await desk.approvals.get(ACME, approval_id)).status == "approved"
    for _ in range(2):
        with capture_logs() as logged:
            finished = await desk.call()
        assert finished.execution.approval_id == approval_id
        row = await desk.journal.tool_call("acme", finished.execution.call.id)
        assert row is not None
        assert (row["verdict"], row["approval_id"]) == ("allow", approval_id)
        assert [entry["approval_id"] for entry in logged if entry["event"] == "tool call"] == [approval_id]
        assert (await desk.approvals.get(ACME, approval_id)).status == "used"
    assert (await desk.call({"command": "git status"})).execution.approval_id == ""


async def test_a_granted_call_that_is_refused_all_the_same_leaves_its_approval(desk: Desk, database: Database) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    document = PolicyDocument(version=1, rules=RULES, quotas=QuotasSection(tool_calls_per_minute=1))
    limited = Tenant("acme", Policy(document), ModelSettings(), {})
    held = Desk(database, desk.clock, Quotas(QuotaStore(database, "gw"), clock=desk.clock))
    assert (await held.call({"command": "git status"}, by=limited)).execution.succeeded
    with pytest.raises(QuotaExceeded):
        await held.call(by=limited)
    assert held.ran == [{"command": "git status"}]
    assert (await desk.approvals.get(ACME, approval_id)).status == "approved"


async def test_a_grant_is_listed_and_holds_until_it_is_revoked(desk: Desk) -> None:
    approval_id = await desk.ask()
    with capture_logs() as logged:
        await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="airlock_ab..")
    (grant,), token = await desk.approvals.grants(ACME, thread="t", include_ended=False, size=0, token="")
    assert (grant.approval_id, grant.granted_by, grant.run_id, token) == (approval_id, "airlock_ab..", None, "")
    assert yaml.safe_load(grant.rule)[0]["argv"] == [["git", "push", "origin", "main", {"end": True}]]
    assert [entry["grant_id"] for entry in logged if entry["event"] == "approval resolved"] == [grant.id]
    assert (await desk.call()).execution.succeeded
    with capture_logs() as logged:
        revoked = await desk.approvals.revoke(ACME, grant.id, by="airlock_cd..")
        assert await desk.approvals.revoke(ACME, grant.id, by="airlock_ef..") == revoked
    assert [entry["by"] for entry in logged if entry["event"] == "grant revoked"] == ["airlock_cd.."]
    assert revoked.revoked_us is not None
    assert not revoked.in_force
    again = await desk.call()
    assert again.execution.waiting
    assert again.execution.approval_id != approval_id
    assert await desk.approvals.grants(ACME, thread="t", include_ended=False, size=0, token="") == ([], "")
    assert await desk.approvals.grants(ACME, thread="", include_ended=True, size=0, token="") == ([revoked], "")


async def test_a_grant_that_is_revoked_first_does_not_let_its_own_call_run(desk: Desk) -> None:
    approval_id = await desk.ask()
    await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    (grant,), _ = await desk.approvals.grants(ACME, thread="t", include_ended=False, size=0, token="")
    await desk.approvals.revoke(ACME, grant.id, by="k")
    assert (await desk.approvals.get(ACME, approval_id)).status == "cancelled"
    assert (await desk.call()).execution.waiting
    assert desk.ran == []


async def test_grants_come_in_pages_and_another_tenant_has_none_of_them(desk: Desk) -> None:
    for number in range(5):
        approval_id = await desk.ask({"command": f"git push {number}"})
        await desk.approvals.resolve(ACME, approval_id, "allow_thread", by="k")
    seen, token, pages = [], "", 0
    while pages == 0 or token:
        found, token = await desk.approvals.grants(ACME, thread="t", include_ended=False, size=2, token=token)
        seen += [yaml.safe_load(one.rule)[0]["argv"][0][2] for one in found]
        pages += 1
    assert (seen, pages) == (["4", "3", "2", "1", "0"], 3)
    other = tenant("other")
    assert await desk.approvals.grants(other, thread="", include_ended=True, size=0, token="") == ([], "")
    with pytest.raises(NotFound, match="approvals grants"):
        await desk.approvals.revoke(other, found[0].id, by="k")
    assert (await desk.call({"command": "git push 0"})).execution.succeeded
    with pytest.raises(InvalidArgument, match="page_size"):
        await desk.approvals.grants(ACME, thread="", include_ended=True, size=201, token="")


async def test_what_an_asking_rule_limits_is_taken_when_the_approved_call_runs(desk: Desk, database: Database) -> None:
    asks = RULES[1].model_copy(update={"rate": Rate(calls=1, per="hour")})
    document = PolicyDocument(version=1, rules=(RULES[0], asks), limits=LimitsSection(approval_s=60))
    limited = Tenant("acme", Policy(document), ModelSettings(), {})
    held = Desk(database, desk.clock, Quotas(QuotaStore(database, "gw"), clock=desk.clock))

    async def approved(command: str) -> FinishedToolCall:
        for _ in range(2):  # to be asked about takes nothing of it
            waiting = await held.call({"command": command}, by=limited)
            assert waiting.execution.waiting
        await held.approvals.resolve(limited, waiting.execution.approval_id, "allow_once", by="k")
        return await held.call({"command": command}, by=limited)

    assert (await approved("git push one")).execution.succeeded
    with pytest.raises(QuotaExceeded) as raised:
        await approved("git push two")
    assert raised.value.details["rule"] == "close-call"
    assert held.ran == [{"command": "git push one"}]


async def test_another_tenants_approval_is_not_found(desk: Desk) -> None:
    approval_id = await desk.ask()
    other = tenant("other")
    with pytest.raises(NotFound):
        await desk.approvals.get(other, approval_id)
    with pytest.raises(NotFound):
        await desk.approvals.resolve(other, approval_id, "allow_once", by="k")
    found, _ = await desk.approvals.page(other, status=None, thread="", run_id="", size=0, token="")
    assert found == []


async def test_pages_hold_all_newest_first(desk: Desk) -> None:
    ids = [await desk.ask({"command": f"git push {number}"}) for number in range(7)]
    seen, token, pages = [], "", 0
    while pages == 0 or token:
        found, token = await desk.approvals.page(ACME, status="pending", thread="t", run_id="", size=3, token=token)
        seen += [one.id for one in found]
        pages += 1
    assert seen == ids[::-1]
    assert pages == 3
    for bad in ("x", "1.", "-1.a", f"{10**30}.a"):
        with pytest.raises(InvalidArgument):
            await desk.approvals.page(ACME, status=None, thread="", run_id="", size=3, token=bad)
    with pytest.raises(InvalidArgument, match="page_size"):
        await desk.approvals.page(ACME, status=None, thread="", run_id="", size=201, token="")


async def test_who_watches_sees_what_waits_and_then_each_change(desk: Desk) -> None:
    first = await desk.ask()
    watched = desk.approvals.watch(ACME)
    begun = await anext(watched)
    assert begun is not None
    assert begun.id == first
    assert await anext(watched) is None
    await desk.approvals.resolve(ACME, first, "deny", by="k")
    second = await desk.ask({"command": "git push other"})
    changes = [await anext(watched), await anext(watched)]
    assert [(one.id, one.status) for one in changes if one is not None] == [(first, "denied"), (second, "pending")]
    desk.clock.pass_s(61)
    expired = await anext(watched)
    assert expired is not None
    assert (expired.id, expired.status) == (second, "expired")
    desk.approvals.close()
    assert [one async for one in watched] == []


async def test_the_log_tells_who_answered_and_never_what_was_asked(desk: Desk) -> None:
    with capture_logs() as logged:
        await desk.approvals.resolve(ACME, await desk.ask(), "allow_once", by="airlock_ab..")
    resolved = next(entry for entry in logged if entry["event"] == "approval resolved")
    assert (resolved["by"], resolved["answer"]) == ("airlock_ab..", "allow_once")
    assert "origin main" not in str(logged)
