"""Approvals as approvers see them: list, watch, resolve. gateway/approvals/approver.py creates them.

The first answer counts. An answer that allows more than the one call applies to the rule that was proposed with it, and
is stored as a grant: a narrow allow rule that takes effect only where the policy asks.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import structlog

from agent.messages import ToolCall
from agent.tool_call import JudgedCall
from agent.tools.intake import bounded
from gateway.approvals.approver import call_digest
from gateway.errors import AirlockError, AlreadyResolved, EditRefused, Internal, InvalidArgument, NotFound
from gateway.policy.decision import Facts
from gateway.redaction import Redactor
from gateway.storage.approval_store import (
    APPROVED,
    CANCELLED,
    DENIED,
    EXPIRED,
    GRANTS_LIMIT,
    PENDING,
    Approval,
    ApprovalStore,
    Grant,
    NewGrant,
    Resolution,
    TooManyGrants,
)
from gateway.support.background import pause
from gateway.support.clock import make_id
from gateway.support.heavy_work import Work, at_once
from gateway.support.paging import PAGE_LIMIT, Place, page_size, paged, place_of
from gateway.tenancy.tenants import Tenant

AnswerName = Literal["allow_once", "allow_run", "allow_thread", "deny", "edit"]
MESSAGE_LIMIT_CHARS = 2_000
_ARGUMENTS_LIMIT_CHARS = 1024 * 1024
_POLL_S = 0.3
_CHANGES_LIMIT = 200
_ANSWERS: Sequence[str] = get_args(AnswerName)
log = structlog.get_logger(__name__)

# Brings a call into the form that the policy judges.
Prepare = Callable[[Tenant, ToolCall], JudgedCall]


@dataclass(frozen=True)
class _Given:
    answer: str
    by: str
    message: str
    arguments_json: str


@dataclass(eq=False)
class Approvals:
    """The approvals of every tenant. `resolved` is called with each approval that is answered here.

    `work_of` returns what does work in turns of a tenant.
    """

    store: ApprovalStore
    prepare: Prepare = lambda _, call: JudgedCall.of(call)
    resolved: Callable[[Approval], None] = lambda _: None
    work_of: Callable[[str], Work] = lambda _tenant: at_once
    poll_s: float = _POLL_S
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, tenant: Tenant, approval_id: str) -> Approval:
        """Return an approval; NotFound also for another tenant's."""
        await self.store.expire(tenant.name)
        found = await self.store.get(tenant.name, approval_id)
        if found is None:
            raise NotFound(f"approval {approval_id[:64]!r} not found: `airlock approvals list` lists the ids")
        return found

    async def page(
        self, tenant: Tenant, *, status: str | None, thread: str, run_id: str, size: int, token: str
    ) -> tuple[Sequence[Approval], str]:
        """Return approvals, newest first, and the token of the next page, "" at the end."""
        query = ("approvals", status, thread, run_id)
        size, before = page_size(size), place_of(token, *query)
        await self.store.expire(tenant.name)
        wanted = {"status": status, "thread": thread or None, "run_id": run_id or None}
        found = await self.store.page(tenant.name, **wanted, before=before, limit=size + 1)
        return paged(found, size, _place, *query)

    async def grants(
        self, tenant: Tenant, *, thread: str, include_ended: bool, size: int, token: str
    ) -> tuple[Sequence[Grant], str]:
        """Return grants, newest first, and the token of the next page, "" at the end."""
        query = ("grants", thread, include_ended)
        size, before = page_size(size), place_of(token, *query)
        found = await self.store.grants(
            tenant.name, thread=thread or None, include_ended=include_ended, before=before, limit=size + 1
        )
        return paged(found, size, _place, *query)

    async def revoke(self, tenant: Tenant, grant_id: str, *, by: str) -> Grant:
        """Revoke a grant; NotFound also for another tenant's. A revoked one stays as it is."""
        first = await self.store.revoke_grant(tenant.name, grant_id)
        found = await self.store.grant(tenant.name, grant_id)
        if found is None:
            raise NotFound(f"grant {grant_id[:64]!r} not found: `airlock approvals grants` lists the ids")
        if first:
            whose = {"tenant": tenant.name, "thread": found.thread, "run_id": found.run_id}
            log.info("grant revoked", grant_id=found.id, approval_id=found.approval_id, by=by, **whose)
        return found

    async def watch(self, tenant: Tenant) -> AsyncIterator[Approval | None]:
        """Yield the pending approvals, then None, then each approval that changes; ends with the gateway."""
        if self._closing.is_set():
            return
        await self.store.expire(tenant.name)
        seen_us = await self.store.last_change_us()
        before: tuple[int, str] | None = (2**63 - 1, "")
        while before is not None:
            page = await self.store.page(
                tenant.name, status=PENDING, thread=None, run_id=None, before=before, limit=PAGE_LIMIT
            )
            for approval in page:
                yield approval
            before = (page[-1].created_us, page[-1].id) if len(page) == PAGE_LIMIT else None
        yield None
        while not self._closing.is_set():
            await self.store.expire(tenant.name)
            changed = await self.store.changed_since(tenant.name, seen_us, _CHANGES_LIMIT)
            for approval in changed:
                yield approval
                seen_us = approval.changed_us
            if not changed:
                await pause(self._closing, self.poll_s)

    def close(self) -> None:
        self._closing.set()

    async def resolve(
        self, tenant: Tenant, approval_id: str, answer: str, *, by: str, message: str = "", arguments_json: str = ""
    ) -> Approval:
        """Answer; the first answer counts. AlreadyResolved says who was first and when.

        A repeated answer of the same approver, whose response may have been lost, changes nothing.
        """
        if answer not in _ANSWERS:
            raise InvalidArgument(f"answer: one of {', '.join(_ANSWERS)}")
        if len(message) > MESSAGE_LIMIT_CHARS:
            raise InvalidArgument(f"message: {MESSAGE_LIMIT_CHARS:,} characters at most")
        if bool(arguments_json) != (answer == "edit"):
            raise InvalidArgument(
                "arguments_json: must be a JSON object for the answer edit and empty for any other answer"
            )
        given = _Given(answer, by, Redactor(tenant.policy.document.redaction).shown(message), arguments_json)
        approval, first, granted = await self.get(tenant, approval_id), False, {}
        if approval.status == PENDING:
            resolution = await self._resolution(tenant, approval, given)
            try:
                first = await self.store.resolve(approval, resolution)
            except TooManyGrants as many:
                raise InvalidArgument(
                    f"answer: the {'run' if answer == 'allow_run' else 'thread'} has {GRANTS_LIMIT} grants, and no "
                    "more are possible: allow the call once, or first revoke grants that are no longer needed "
                    "(`airlock approvals grants` lists them, `airlock approvals revoke ID` revokes one)"
                ) from many
            approval = await self.get(tenant, approval_id)
            granted = {"grant_id": resolution.grant.id} if resolution.grant is not None else {}
        if not first:
            if await self._is_repeated(tenant, approval, given):
                return approval
            raise _already(approval)
        whose = {"tenant": tenant.name, "thread": approval.thread, "run_id": approval.run_id}
        log.info(
            "approval resolved", approval_id=approval.id, answer=answer, by=by, tool=approval.tool, **whose, **granted
        )
        self.resolved(approval)
        return approval

    async def _is_repeated(self, tenant: Tenant, approval: Approval, given: _Given) -> bool:
        """Return whether an approval has just this answer, even if its call has run since."""
        answered = (approval.answer, approval.resolved_by, approval.message or "")
        if answered != (given.answer, given.by[:128], given.message):
            return False
        if given.answer != "edit":
            return True
        return await self.work_of(tenant.name)(self._edited_digest, tenant, approval, given) == approval.edited_digest

    def _edited_digest(self, tenant: Tenant, approval: Approval, given: _Given) -> str:
        judged = self.prepare(tenant, _edited_call(approval, given.arguments_json))
        return call_digest(tenant.name, judged, approval.policy_version)

    async def _resolution(self, tenant: Tenant, approval: Approval, given: _Given) -> Resolution:
        answer, grant = given.answer, None
        if answer == "edit":
            # Always in a turn: judging even a short command line may take long, and edits are rare.
            return await self.work_of(tenant.name)(self._edit, tenant, approval, given)
        if answer in ("allow_run", "allow_thread"):
            if not approval.proposed_rule:
                raise InvalidArgument(
                    "answer: no rule narrow enough exists for this call, so it can only be allowed once"
                )
            if answer == "allow_run" and approval.run_id is None:
                raise InvalidArgument("answer: this call belongs to no run; allow it once or for its thread")
            to_run = approval.run_id if answer == "allow_run" else None
            grant = NewGrant(make_id("grant"), approval.proposed_rule, to_run)
        return Resolution(DENIED if answer == "deny" else APPROVED, answer, given.by, given.message, grant=grant)

    def _edit(self, tenant: Tenant, approval: Approval, given: _Given) -> Resolution:
        """Judge the new arguments at once: an approver is not above the policy."""
        judged = self.prepare(tenant, _edited_call(approval, given.arguments_json))
        if judged.unfit is not None:
            raise InvalidArgument(f"arguments_json: {judged.unfit.text()}")
        arguments = judged.call.arguments or {}
        facts = Facts(tenant=tenant.name, thread=approval.thread, run_id=approval.run_id or "")
        decision = tenant.policy.judge(approval.tool, arguments, facts)
        if decision.verdict == "deny":
            raise EditRefused(
                f"the policy denies the call with these arguments (rule {decision.rule}): {decision.reason}",
                rule=decision.rule,
            )
        return Resolution(
            APPROVED,
            "edit",
            given.by,
            given.message,
            edited_arguments=judged.canonical.decode(),
            edited_digest=call_digest(tenant.name, judged, approval.policy_version),
        )


def _edited_call(approval: Approval, arguments_json: str) -> ToolCall:
    if len(arguments_json) > _ARGUMENTS_LIMIT_CHARS:
        raise InvalidArgument(f"arguments_json: {_ARGUMENTS_LIMIT_CHARS:,} characters at most")
    try:
        arguments: Any = json.loads(arguments_json)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"arguments_json: not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidArgument("arguments_json: a JSON object is expected")
    call = bounded(ToolCall(id=approval.call_id, name=approval.tool, arguments=arguments))
    if call.problem:
        raise InvalidArgument(f"arguments_json: its values {call.problem}")
    return call


def _already(approval: Approval) -> AirlockError:
    details: Mapping[str, str] = {"status": approval.status}
    if approval.status == PENDING:
        return Internal("the answer was not recorded; send it again")
    if approval.status in (EXPIRED, CANCELLED):
        why = "it was not answered in time" if approval.status == EXPIRED else "it is no longer requested"
        return AlreadyResolved(f"the approval {approval.id} is {approval.status}: {why}", **details)
    seconds = math.floor((approval.resolved_us or 0) / 1_000_000)
    answered = {"resolved_by": approval.resolved_by or "", "answer": approval.answer or "", "resolved_s": str(seconds)}
    return AlreadyResolved(
        f"approval {approval.id} was already answered: {approval.answer} by {approval.resolved_by}",
        **details,
        **answered,
    )


def _place(one: Approval | Grant) -> Place:
    return one.created_us, one.id
