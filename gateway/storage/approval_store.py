"""The queries of approvals and grants. Each change of an approval is conditional: the first answer wins."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, case, exists, func, insert, literal, or_, select, update

from gateway.credentials.caller import actor
from gateway.storage.audit_store import AuditEntry, shared
from gateway.storage.entities import Thread
from gateway.storage.queries import Queries, matching, page_of, transaction, with_thread
from gateway.storage.tables import RUNS_UNDER_WAY, approvals, grants, runs, threads
from gateway.support.clock import make_id
from gateway.support.paging import Place

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"
_GRANTED_TO_ALL = grants.c.run_id.is_(None)
_RUN_GOES_ON = exists().where(runs.c.id == grants.c.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
_NOT_REVOKED = grants.c.revoked_us.is_(None)
_IN_FORCE = _NOT_REVOKED & or_(_GRANTED_TO_ALL, _RUN_GOES_ON)
_GRANTS = with_thread(
    grants,
    *(grants.c[name] for name in ("id", "tenant", "run_id", "rule", "approval_id", "created_us", "revoked_us")),
    approvals.c.resolved_by.label("granted_by"),
    _IN_FORCE.label("in_force"),
).join(approvals, grants.c.approval_id == approvals.c.id)


@dataclass(frozen=True)
class NewGrant:
    """A rule, as YAML, that allows calls of the thread or, with `run_id`, of that run."""

    id: str
    rule: str
    run_id: str | None


@dataclass(frozen=True)
class Grant:
    """A stored grant; `thread` is the thread's name. It is `in_force` until it is revoked, or its run is over."""

    id: str
    tenant: str
    thread: str
    run_id: str | None
    rule: str
    approval_id: str
    granted_by: str | None
    created_us: int
    revoked_us: int | None
    in_force: bool


@dataclass(frozen=True)
class Approval:
    """A stored approval; `thread` is the thread's name, `arguments` and `asked` are JSON.

    A listed approval with long texts is `cut`: `arguments` are then "{}", `asked` is "[]", `edited_arguments` and
    `proposed_rule` are None.
    """

    id: str
    tenant: str
    thread_id: str
    thread: str
    run_id: str | None
    call_id: str
    tool: str
    arguments: str
    arguments_bytes: int
    digest: str
    policy_version: str
    rule: str
    reason: str
    asked: str
    proposed_rule: str | None
    status: str
    answer: str | None
    message: str | None
    edited_arguments: str | None
    edited_digest: str | None
    resolved_by: str | None
    created_us: int
    expires_us: int
    resolved_us: int | None
    changed_us: int
    cut: bool

    @property
    def valid_until_us(self) -> int:
        """A pending one is valid until it expires, an answer for as long as that after it was given."""
        return (self.resolved_us or self.created_us) + self.expires_us - self.created_us

    @property
    def asked_parts(self) -> Sequence[str]:
        parts: list[str] = json.loads(self.asked)
        return parts


@dataclass(frozen=True)
class Asked:
    """A call that needs approval.

    `digest` is what is approved (gateway/approvals/approver.py), `arguments_digest` what the audit records of the call.
    """

    call_id: str
    tool: str
    arguments: str
    digest: str
    policy_version: str
    rule: str
    reason: str
    asked: Sequence[str]
    proposed_rule: str | None
    expires_us: int
    arguments_digest: str = ""


@dataclass(frozen=True)
class Resolution:
    """The answer to a pending approval; `grant` is what it grants beyond this one call."""

    status: str
    answer: str
    by: str
    message: str = ""
    edited_arguments: str | None = None
    edited_digest: str | None = None
    grant: NewGrant | None = None


class TooManyPending(Exception):
    """A tenant's pending approvals have reached the limit of their number or size; the text says which."""


class TooManyGrants(Exception):
    """The thread, or the run, has GRANTS_LIMIT grants."""


PENDING_LIMIT = 100
PENDING_LIMIT_BYTES = 16 * 1024 * 1024
GRANTS_LIMIT = 100  # of a thread, and of each run
# The limit of each long text in a list; GetApproval returns all of it.
LISTED_LIMIT_BYTES = 4096

_COLUMNS = tuple(name for name in Approval.__dataclass_fields__ if name not in ("thread", "cut"))
# Replaces a text that is too long for a list.
_LONG: Mapping[str, str | None] = {"arguments": "{}", "asked": "[]", "edited_arguments": None, "proposed_rule": None}
_TOO_LONG = {
    name: (approvals.c.arguments_bytes if name == "arguments" else func.length(approvals.c[name])) > LISTED_LIMIT_BYTES
    for name in _LONG
}
_OPEN = approvals.c.status.in_((PENDING, APPROVED))
_QUERY = with_thread(approvals, *(approvals.c[name] for name in _COLUMNS), literal(False).label("cut"))
_LISTED = with_thread(
    approvals,
    *(approvals.c[name] for name in _COLUMNS if name not in _LONG),
    *(case((_TOO_LONG[name], short), else_=approvals.c[name]).label(name) for name, short in _LONG.items()),
    case((or_(*_TOO_LONG.values()), True), else_=False).label("cut"),
)


class ApprovalStore(Queries):
    """Typed access to approvals and grants: rules that approvers granted, in force until they are revoked."""

    @transaction
    def ask(self, connection: Connection, thread: Thread, run_id: str | None, asked: Asked) -> str:
        """Return the id of the call's pending approval, created if there is none. Raises TooManyPending."""
        size_bytes = len(asked.arguments.encode())
        row = vars(asked) | {
            "id": make_id("apr"),
            "tenant": thread.tenant,
            "thread_id": thread.id,
            "run_id": run_id,
            "tool": asked.tool[:128],
            "arguments_bytes": size_bytes,
            "rule": asked.rule[:128],
            "asked": json.dumps(list(asked.asked)),
            "status": PENDING,
            "created_us": self.clock(),
        }
        del row["arguments_digest"]
        by = actor()
        same = (approvals.c.thread_id == thread.id) & (approvals.c.digest == asked.digest)
        same &= approvals.c.status == PENDING
        # Two equal calls of one step are two calls; a service that repeats its call means the same one.
        same &= approvals.c.run_id.is_(None) if run_id is None else approvals.c.call_id == asked.call_id
        found = connection.execute(select(approvals.c.id).where(same, approvals.c.expires_us > self.clock())).first()
        if found is not None:
            return str(found.id)
        self._check_limits(connection, thread.tenant, size_bytes)
        row["changed_us"] = self._next_change_us(connection)
        connection.execute(insert(approvals), row)
        if run_id is not None:  # a service's call is recorded with its journal entry
            self.audit.append(connection, _sought(thread, run_id, str(row["id"]), asked, by))
        return str(row["id"])

    async def get(self, tenant: str, approval_id: str) -> Approval | None:
        return await self._one(Approval, _QUERY.where(approvals.c.id == approval_id, approvals.c.tenant == tenant))

    async def of_calls(self, run_id: str, call_ids: Collection[str]) -> Sequence[Approval]:
        """Return the approvals of a run's calls, newest first."""
        query = _QUERY.where(approvals.c.run_id == run_id, approvals.c.call_id.in_(list(call_ids)))
        return await self._all(Approval, page_of(query, approvals, None, None))

    async def of_digest(self, thread: Thread, digest: str) -> Approval | None:
        """Return the newest approval of a call outside runs."""
        query = _QUERY.where(
            approvals.c.thread_id == thread.id,
            approvals.c.run_id.is_(None),
            or_(approvals.c.digest == digest, approvals.c.edited_digest == digest),
        )
        return await self._one(Approval, page_of(query, approvals, None, 1))

    async def page(
        self,
        tenant: str,
        *,
        status: str | None,
        thread: str | None,
        run_id: str | None,
        before: Place | None,
        limit: int,
    ) -> Sequence[Approval]:
        """Return approvals, newest first, with long texts cut; `before` is the place of the previous page's end."""
        wanted = matching({approvals.c.status: status, threads.c.name: thread, approvals.c.run_id: run_id})
        query = _LISTED.where(approvals.c.tenant == tenant, *wanted)
        return await self._all(Approval, page_of(query, approvals, before, limit))

    async def changed_since(self, tenant: str, changed_us: int, limit: int) -> Sequence[Approval]:
        """Return the approvals that changed after that time, cut, in the order of the changes."""
        query = _LISTED.where(approvals.c.tenant == tenant, approvals.c.changed_us > changed_us)
        return await self._all(Approval, query.order_by(approvals.c.changed_us).limit(limit))

    async def last_change_us(self) -> int:
        return await self._database.scalar(select(func.max(approvals.c.changed_us))) or 0

    @transaction
    def resolve(self, connection: Connection, approval: Approval, resolution: Resolution) -> bool:
        """Answer a pending approval; return whether this answer was the first, and in time. Raises TooManyGrants."""
        now = self.clock()
        changes = vars(resolution) | {"resolved_by": resolution.by[:128], "resolved_us": now}
        del changes["by"], changes["grant"]
        granted = resolution.grant
        still_open = (approvals.c.id == approval.id) & (approvals.c.status == PENDING) & (approvals.c.expires_us > now)
        if not self._change(connection, still_open, changes):
            return False
        if granted is not None:
            alike = (grants.c.thread_id == approval.thread_id) & grants.c.run_id.is_not_distinct_from(granted.run_id)
            if connection.execute(select(func.count()).where(alike, _NOT_REVOKED)).scalar_one() >= GRANTS_LIMIT:
                raise TooManyGrants
            whose = {"tenant": approval.tenant, "thread_id": approval.thread_id, "approval_id": approval.id}
            connection.execute(insert(grants), vars(granted) | whose | {"created_us": now})
        self.audit.append(connection, _answered(approval, resolution))
        return True

    async def use(self, approval_id: str) -> bool:
        return await self._changed((approvals.c.id == approval_id) & (approvals.c.status == APPROVED), USED) == 1

    async def expire(self, tenant: str | None = None) -> None:
        """Mark and audit expired approvals, of a tenant or of all; they expire by the time, whether marked or not."""
        over = (approvals.c.status == PENDING) & (approvals.c.expires_us <= self.clock())
        over = over if tenant is None else over & (approvals.c.tenant == tenant)
        if await self._has(approvals.c.id, over):
            await self._mark_expired(over)

    @transaction
    def _mark_expired(self, connection: Connection, which: ColumnElement[bool]) -> None:
        # Another gateway may notice at the same time: each is recorded once, dated at the expiry.
        query = with_thread(approvals).where(which).order_by(approvals.c.expires_us).with_for_update(of=approvals)
        found = connection.execute(query).all()
        if found:
            self._change(connection, approvals.c.id.in_([row.id for row in found]), {"status": EXPIRED})
        self.audit.append(connection, *(_resolved(row, "deny", EXPIRED, at_us=row.expires_us) for row in found))

    async def cancel(self, approval_id: str) -> None:
        await self._changed((approvals.c.id == approval_id) & _OPEN, CANCELLED)

    async def cancel_open(self, run_id: str) -> None:
        """Cancel the pending approvals of a finished run, and the answers that it did not use."""
        if await self._has(approvals.c.id, approvals.c.run_id == run_id, _OPEN):
            await self._changed((approvals.c.run_id == run_id) & _OPEN, CANCELLED)

    async def _changed(self, which: ColumnElement[bool], status: str) -> int:
        return await self._database.transact(lambda connection: self._change(connection, which, {"status": status}))

    def _change(self, connection: Connection, which: ColumnElement[bool], changes: Mapping[str, Any]) -> int:
        """Change approvals and return how many; watchers find them by the time of the change."""
        changed = {**changes, "changed_us": self._next_change_us(connection)}
        return connection.execute(update(approvals).where(which).values(**changed)).rowcount

    def _next_change_us(self, connection: Connection) -> int:
        """Return a time after every change so far, whatever the clocks of the gateways say."""
        last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
        return max(self.clock(), last + 1)

    def _check_limits(self, connection: Connection, tenant: str, size_bytes: int) -> None:
        """Raise TooManyPending if another approval of this size would exceed a limit."""
        open_ = (approvals.c.tenant == tenant) & (approvals.c.status == PENDING)
        counted = select(func.count(), func.coalesce(func.sum(approvals.c.arguments_bytes), 0)).where(
            open_, approvals.c.expires_us > self.clock()
        )
        number, taken_bytes = connection.execute(counted).one()
        if number >= PENDING_LIMIT:
            raise TooManyPending(f"this tenant has {number} pending approvals, and the limit is {PENDING_LIMIT}")
        if taken_bytes + size_bytes > PENDING_LIMIT_BYTES:
            raise TooManyPending(
                f"the arguments of this tenant's pending approvals have {taken_bytes:,} bytes; with the "
                f"{size_bytes:,} bytes of this call they would exceed the limit of {PENDING_LIMIT_BYTES:,}"
            )

    # --- grants ---

    async def granted_rules(self, thread: Thread, run_id: str | None) -> Sequence[tuple[str, str]]:
        """Return the rules (YAML) granted to a thread or this run of it, each with the id of its approval."""
        mine = or_(_GRANTED_TO_ALL, grants.c.run_id == (run_id or ""))
        query = select(grants.c.rule, grants.c.approval_id).where(grants.c.thread_id == thread.id, _NOT_REVOKED, mine)
        return [(row.rule, row.approval_id) for row in await self._database.rows(query.order_by(grants.c.created_us))]

    async def grant(self, tenant: str, grant_id: str) -> Grant | None:
        return await self._one(Grant, _GRANTS.where(grants.c.id == grant_id, grants.c.tenant == tenant))

    async def grants(
        self, tenant: str, *, thread: str | None, include_ended: bool, before: Place | None, limit: int
    ) -> Sequence[Grant]:
        query = _GRANTS.where(grants.c.tenant == tenant, *matching({threads.c.name: thread}))
        if not include_ended:
            query = query.where(_IN_FORCE)
        return await self._all(Grant, page_of(query, grants, before, limit))

    @transaction
    def revoke_grant(self, connection: Connection, tenant: str, grant_id: str) -> bool:
        """Revoke a grant, and its approval unless the approved call has run; return whether it was in force."""
        not_revoked = (grants.c.id == grant_id) & (grants.c.tenant == tenant) & _NOT_REVOKED
        revoked = update(grants).where(not_revoked).values(revoked_us=self.clock())
        approval_id = select(grants.c.approval_id).where(grants.c.id == grant_id).scalar_subquery()
        unused = (approvals.c.id == approval_id) & (approvals.c.status == APPROVED)
        by = actor()
        if not connection.execute(revoked).rowcount:
            return False
        self._change(connection, unused, {"status": CANCELLED})
        row = connection.execute(_GRANTS.where(grants.c.id == grant_id)).one()
        details = {"grant_id": row.id, "approval_id": row.approval_id}
        whose = {"thread": row.thread, "run_id": row.run_id or ""}
        self.audit.append(connection, AuditEntry(tenant, "grant_revoked", by, **whose, details=details))
        return True


def _sought(thread: Thread, run_id: str, approval_id: str, asked: Asked, by: str) -> AuditEntry:
    return AuditEntry(
        thread.tenant,
        "tool_call",
        by,
        **shared(asked, "call_id", "tool", "arguments_digest", "rule", "policy_version"),
        thread=thread.name,
        run_id=run_id,
        verdict="ask",
        outcome="waiting",
        details={"approval_id": approval_id},
    )


def _answered(approval: Approval, resolution: Resolution) -> AuditEntry:
    """Return the entry of an answer; its message is free text, and stays with the approval."""
    details: dict[str, JsonValue] = {"answer": resolution.answer}
    if resolution.grant is not None:
        details["grant_id"] = resolution.grant.id
    if resolution.edited_digest is not None:
        details["edited_digest"] = resolution.edited_digest
    verdict = "deny" if resolution.status == DENIED else "allow"
    return _resolved(approval, verdict, resolution.status, by=resolution.by, details=details)


def _resolved(
    approval: Any,
    verdict: str,
    outcome: str,
    *,
    by: str = "gateway",
    at_us: int | None = None,
    details: Mapping[str, JsonValue] = MappingProxyType({}),
) -> AuditEntry:
    """Return the audit entry of an approval, or its row, that was answered or has expired."""
    return AuditEntry(
        approval.tenant,
        "approval_resolved",
        by,
        **shared(approval, "thread", "run_id", "call_id", "tool", "rule", "policy_version"),
        arguments_digest=approval.digest,
        verdict=verdict,
        outcome=outcome,
        details={"approval_id": approval.id, **details},
        at_us=at_us,
    )
