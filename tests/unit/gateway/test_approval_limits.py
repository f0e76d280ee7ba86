"""What asking may cost: how much waits, how long it is kept, what lists hold, and times to the microsecond."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import func, select

from agent.messages import ToolCall
from agent.tool_call import JudgedCall
from gateway.approvals.approver import call_digest, load_grants
from gateway.config.model_settings import ModelSettings
from gateway.errors import QuotaExceeded
from gateway.policy.document import PolicyDocument, QuotasSection
from gateway.policy.judge import Policy
from gateway.storage.approval_store import (
    LISTED_LIMIT_BYTES,
    PENDING_LIMIT,
    PENDING_LIMIT_BYTES,
    Approval,
    ApprovalStore,
    Asked,
    NewGrant,
    Resolution,
    TooManyPending,
)
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.storage.tables import approvals
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from tests.unit.gateway.approvals.test_approvals import RULES, Desk

_START_US = 1_795_262_400_000_000
_DAY_US = 86_400_000_000
_MIB = 1024 * 1024
ASKED = Asked(
    call_id="call_1",
    tool="execute",
    arguments='{"command": "git push"}',
    digest="d",
    policy_version="policy_1",
    rule="push",
    reason="r",
    asked=("git push",),
    proposed_rule=None,
    expires_us=_START_US + 60_000_000,
)


class Clock:
    """A clock that stands still until it is moved."""

    now_us = _START_US

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Asking:
    """A store of approvals, its clock and a thread."""

    database: Database
    store: ApprovalStore
    clock: Clock
    thread: Thread

    async def ask(self, digest: str, thread: Thread | None = None, *, arguments: str = "{}", **more: object) -> str:
        asked = replace(ASKED, digest=digest, arguments=arguments, **{"expires_us": self.clock() + 60_000_000, **more})
        return await self.store.ask(thread or self.thread, None, asked)

    async def get(self, approval_id: str) -> Approval:
        found = await self.store.get("t", approval_id)
        assert found is not None
        return found

    async def kept(self) -> int:
        return int((await self.database.rows(select(func.count()).select_from(approvals)))[0][0])


@pytest.fixture
async def asking(database_url: str) -> AsyncIterator[Asking]:
    database = await Database.open(database_url)
    clock = Clock()
    thread = await Store(database).thread("t", "th")
    yield Asking(database, ApprovalStore(database, clock=clock), clock, thread)
    await database.close()


# --- how much waits ---


async def test_so_many_wait_and_no_more_until_one_is_answered(asking: Asking) -> None:
    ids = [await asking.ask(f"d{number}") for number in range(PENDING_LIMIT)]
    with pytest.raises(TooManyPending, match="100 pending approvals"):
        await asking.ask("more")
    assert await asking.ask("d5") == ids[5]  # the same call is asked about already
    other = await Store(asking.database).thread("other", "th")
    await asking.ask("more", other)
    assert await asking.store.resolve(await asking.get(ids[0]), Resolution("denied", "deny", "k"))
    await asking.ask("more")
    asking.clock.now_us += 60_000_000  # what was not answered in time does not wait, marked as such or not
    await asking.ask("later")


async def test_what_waits_has_so_many_bytes(asking: Asking) -> None:
    whole = json.dumps({"content": "x" * (_MIB - 15)})
    assert len(whole) == _MIB
    for number in range(PENDING_LIMIT_BYTES // _MIB - 1):
        await asking.ask(f"d{number}", arguments=whole)
    with pytest.raises(TooManyPending, match="exceed the limit of 16,777,216"):
        await asking.ask("more", arguments=whole + " ")
    await asking.ask("fits", arguments=whole)
    with pytest.raises(TooManyPending):
        await asking.ask("more", arguments="{}")


async def test_a_call_without_an_approver_is_blocked_by_the_rule_approval(
    asking: Asking,
) -> None:
    desk = Desk(asking.database, asking.clock)  # type: ignore[arg-type]  # any clock
    for number in range(PENDING_LIMIT):
        assert (await desk.call({"command": f"git push {number}"})).execution.waiting
    refused = await desk.call({"command": "git push more"})
    verdict = refused.execution.verdict
    assert verdict is not None
    assert (refused.execution.blocked, verdict.rule) == (True, "approval")
    assert "100 pending approvals" in refused.result.text()
    row = await desk.journal.tool_call("acme", refused.execution.call.id)
    assert row is not None
    assert (row["verdict"], row["rule"]) == ("deny", "approval")


async def test_asked_and_denied_calls_of_a_service_use_the_minute_up(asking: Asking) -> None:
    document = PolicyDocument(version=1, rules=RULES, quotas=QuotasSection(tool_calls_per_minute=5))
    limited = Tenant("acme", Policy(document), ModelSettings(), {})
    quotas = Quotas(QuotaStore(asking.database, "gw"), clock=asking.clock)
    desk = Desk(asking.database, asking.clock, quotas)  # type: ignore[arg-type]  # any clock
    for number in range(3):
        assert (await desk.call({"command": f"git push {number}"}, by=limited)).execution.waiting
    for _ in range(2):
        assert (await desk.call({"command": "git push --force"}, by=limited)).execution.blocked
    for command in ("git push 4", "git push --force", "git status"):
        with pytest.raises(QuotaExceeded) as raised:
            await desk.call({"command": command}, by=limited)
        assert raised.value.details["quota"] == "tool_calls_per_minute"
    assert await asking.kept() == 3
    assert desk.ran == []


# --- what lists hold ---


async def test_lists_and_watchers_get_long_texts_cut_and_get_has_them_whole(asking: Asking) -> None:
    long = json.dumps({"content": "x" * 900_000})
    edge = json.dumps({"content": "x" * (LISTED_LIMIT_BYTES - 15)})
    assert len(edge) == LISTED_LIMIT_BYTES
    ids = {
        "long": await asking.ask("long", arguments=long, proposed_rule="- y", asked=("part",)),
        "edge": await asking.ask("edge", arguments=edge),
        "over": await asking.ask("over", arguments=edge + " "),
        "asked": await asking.ask("asked", asked=("x" * 5000,), proposed_rule="y" * 5000),
    }
    page = await asking.store.page("t", status=None, thread=None, run_id=None, before=None, limit=9)
    changed = await asking.store.changed_since("t", 0, 9)
    for listed in (page, changed):
        of = {one.id: one for one in listed}
        assert {name for name, id_ in ids.items() if of[id_].cut} == {"long", "over", "asked"}
        assert (of[ids["long"]].arguments, of[ids["long"]].arguments_bytes) == ("{}", len(long))
        assert (of[ids["long"]].proposed_rule, of[ids["long"]].asked_parts) == ("- y", ["part"])
        assert of[ids["edge"]].arguments == edge
        assert (of[ids["asked"]].asked, of[ids["asked"]].proposed_rule) == ("[]", None)
    whole = await asking.get(ids["long"])
    assert (whole.arguments, whole.cut) == (long, False)
    assert (await asking.get(ids["asked"])).proposed_rule == "y" * 5000


# --- times ---


async def test_an_answer_counts_until_the_very_end_of_the_time_and_not_at_it(asking: Asking) -> None:
    in_time, late = await asking.get(await asking.ask("a")), await asking.get(await asking.ask("b"))
    asking.clock.now_us = in_time.expires_us - 1
    assert await asking.store.resolve(in_time, Resolution("approved", "allow_once", "k"))
    asking.clock.now_us = late.expires_us
    assert not await asking.store.resolve(late, Resolution("approved", "allow_once", "k"))
    assert (await asking.get(late.id)).status == "pending"  # not marked yet


async def test_a_question_whose_time_is_over_is_asked_anew(asking: Asking) -> None:
    first = await asking.ask("a")
    asking.clock.now_us += 60_000_000 - 1
    assert await asking.ask("a") == first
    asking.clock.now_us += 1
    assert await asking.ask("a") != first


def test_what_is_approved_is_approved_for_one_tenant_one_call_and_one_policy() -> None:
    call = ToolCall(id="c", name="execute", arguments={"command": "git push"})

    def digest_of(tenant: str = "acme", version: str = "policy_1", **changes: Any) -> str:
        return call_digest(tenant, JudgedCall.of(call.model_copy(update=changes)), version)

    digest = digest_of()
    assert digest == digest_of(id="another")
    others = (
        digest_of("other"),
        digest_of(version="policy_2"),
        digest_of(name="write_file"),
        digest_of(arguments={"command": "git push -f"}),
    )
    assert len({digest, *others}) == 5


async def test_grants_of_a_thread_are_loaded_with_their_approvals_from_what_the_store_holds(asking: Asking) -> None:
    rule = "- {id: grant-1, tools: [execute], effect: allow, reason: r, argv: [[git, push, {end: true}]]}\n"
    for number, digest in enumerate(("a", "b")):
        approval = await asking.get(await asking.ask(digest))
        grant = NewGrant(f"grant_{number}", rule.replace("grant-1", f"grant-{number}"), None)
        assert await asking.store.resolve(approval, Resolution("approved", "allow_thread", "k", grant=grant))
        held = await load_grants(asking.store, asking.thread, None)
        assert held.approvals[f"grant-{number}"] == approval.id
        assert len(held.approvals) == number + 1
    policy = Policy(PolicyDocument(version=1, rules=RULES))
    assert policy.judge("execute", {"command": "git push"}).verdict == "ask"
    assert policy.judge("execute", {"command": "git push"}, grants=held.grants).verdict == "allow"
