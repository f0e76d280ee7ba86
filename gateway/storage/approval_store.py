"""The queries of approvals and of what was granted with them. Each change is conditional: the first answer wins."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update

from gateway.clock import MakeId, NowUs, make_id, now_us
from gateway.storage.database import Database
from gateway.storage.store import Thread
from gateway.storage.tables import approvals, grants, threads

PENDING, APPROVED, USED, DENIED = "pending", "approved", "used", "denied"
EXPIRED, CANCELLED = "expired", "cancelled"


@dataclass(frozen=True)
class Approval:
    """An approval as it is stored; `thread` is the thread's name, `arguments` and `asked` are JSON texts."""

    id: str
    tenant: str
    thread_id: str
    thread: str
    run_id: str | None
    call_id: str
    tool: str
    arguments: str
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

    @property
    def asked_parts(self) -> Sequence[str]:
        """The parts of the call that were asked about."""
        parts: list[str] = json.loads(self.asked)
        return parts


@dataclass(frozen=True)
class Asked:
    """A call that somebody is to be asked about."""

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


@dataclass(frozen=True)
class Resolution:
    """What became of a pending approval; `grant` is a rule that calls of the thread, or of the run alone, pass by."""

    status: str
    answer: str
    by: str
    message: str = ""
    edited_arguments: str | None = None
    edited_digest: str | None = None
    grant: str | None = None
    grant_to_run: bool = False


_COLUMNS = tuple(name for name in Approval.__dataclass_fields__ if name != "thread")
_QUERY = select(*(approvals.c[name] for name in _COLUMNS), threads.c.name.label("thread")).join(
    threads, approvals.c.thread_id == threads.c.id
)
_NEWEST_FIRST = (approvals.c.created_us.desc(), approvals.c.id.desc())


class ApprovalStore:
    """Typed access to the approvals."""

    def __init__(self, database: Database, *, clock: NowUs = now_us, ids: MakeId = make_id) -> None:
        self._database = database
        self.clock = clock
        self._ids = ids

    async def ask(self, thread: Thread, run_id: str | None, asked: Asked) -> str:
        """Return the id of the pending approval of this call, made when there is none."""
        row = {
            "id": self._ids("apr"),
            "tenant": thread.tenant,
            "thread_id": thread.id,
            "run_id": run_id,
            "call_id": asked.call_id,
            "tool": asked.tool[:128],
            "arguments": asked.arguments,
            "digest": asked.digest,
            "policy_version": asked.policy_version,
            "rule": asked.rule[:128],
            "reason": asked.reason,
            "asked": json.dumps(list(asked.asked)),
            "proposed_rule": asked.proposed_rule,
            "status": PENDING,
            "created_us": self.clock(),
            "expires_us": asked.expires_us,
        }
        same = (approvals.c.thread_id == thread.id) & (approvals.c.digest == asked.digest)
        same &= approvals.c.status == PENDING
        # Two equal calls of one step are two calls; a service that asks again asks about the same one.
        same &= approvals.c.run_id.is_(None) if run_id is None else approvals.c.call_id == asked.call_id

        def work(connection: Connection) -> str:
            found = connection.execute(
                select(approvals.c.id).where(same, approvals.c.expires_us > self.clock())
            ).first()
            if found is not None:
                return str(found.id)
            connection.execute(insert(approvals), {**row, "changed_us": self._next_change(connection)})
            return str(row["id"])

        return await self._database.transact(work)

    async def get(self, tenant: str, approval_id: str) -> Approval | None:
        """Return an approval of a tenant."""
        found = await self._found(approvals.c.id == approval_id, approvals.c.tenant == tenant)
        return found[0] if found else None

    async def of_calls(self, run_id: str, call_ids: Collection[str]) -> Sequence[Approval]:
        """Return what was asked about calls of a run, the newest first."""
        return await self._found(approvals.c.run_id == run_id, approvals.c.call_id.in_(list(call_ids)))

    async def of_digest(self, thread: Thread, digest: str) -> Approval | None:
        """Return the newest approval of a call that belongs to no run."""
        found = await self._found(
            approvals.c.thread_id == thread.id,
            approvals.c.run_id.is_(None),
            or_(approvals.c.digest == digest, approvals.c.edited_digest == digest),
            limit=1,
        )
        return found[0] if found else None

    async def page(
        self,
        tenant: str,
        *,
        status: str | None,
        thread: str | None,
        run_id: str | None,
        before: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[Approval]:
        """Return approvals, the newest first; `before` is when the last one of the page before was made, and its id."""
        conditions = [approvals.c.tenant == tenant]
        if status is not None:
            conditions.append(approvals.c.status == status)
        if thread is not None:
            conditions.append(threads.c.name == thread)
        if run_id is not None:
            conditions.append(approvals.c.run_id == run_id)
        if before is not None:
            created_us, id_ = before
            same_time = and_(approvals.c.created_us == created_us, approvals.c.id < id_)
            conditions.append(or_(approvals.c.created_us < created_us, same_time))
        return await self._found(*conditions, limit=limit)

    async def changed_since(self, tenant: str, changed_us: int, limit: int) -> Sequence[Approval]:
        """Return what has changed after that, in the order of the changes."""
        query = _QUERY.where(approvals.c.tenant == tenant, approvals.c.changed_us > changed_us)
        rows = await self._database.rows(query.order_by(approvals.c.changed_us).limit(limit))
        return [_approval(row) for row in rows]

    async def last_change_us(self) -> int:
        """Return when anything changed last, 0 when nothing ever did."""
        rows = await self._database.rows(select(func.max(approvals.c.changed_us).label("last")))
        return rows[0].last or 0

    async def resolve(self, approval: Approval, resolution: Resolution) -> bool:
        """Answer a pending approval; return whether this answer was the first, and in time."""
        now = self.clock()
        changes = {
            "status": resolution.status,
            "answer": resolution.answer,
            "message": resolution.message,
            "edited_arguments": resolution.edited_arguments,
            "edited_digest": resolution.edited_digest,
            "resolved_by": resolution.by[:128],
            "resolved_us": now,
        }
        grant = {
            "id": self._ids("grant"),
            "tenant": approval.tenant,
            "thread_id": approval.thread_id,
            "run_id": approval.run_id if resolution.grant_to_run else None,
            "rule": resolution.grant,
            "approval_id": approval.id,
            "created_us": now,
        }
        still_open = (approvals.c.id == approval.id) & (approvals.c.status == PENDING) & (approvals.c.expires_us > now)

        def work(connection: Connection) -> bool:
            if not self._change(connection, still_open, changes):
                return False
            if resolution.grant is not None:
                connection.execute(insert(grants), grant)
            return True

        return await self._database.transact(work)

    async def use(self, approval_id: str) -> bool:
        """Use an approval up; return whether it was there to be used."""
        approved = (approvals.c.id == approval_id) & (approvals.c.status == APPROVED)
        return await self._changed(approved, {"status": USED}) == 1

    async def expire(self, tenant: str) -> None:
        """Mark what nobody answered in time; the time itself makes it expired, whether it is marked or not."""
        late = (
            (approvals.c.tenant == tenant) & (approvals.c.status == PENDING) & (approvals.c.expires_us <= self.clock())
        )
        if await self._database.rows(select(approvals.c.id).where(late).limit(1)):
            await self._changed(late, {"status": EXPIRED})

    async def cancel(self, approval_id: str) -> None:
        """Take back a question, or an answer that is not for what is asked by now."""
        open_ = approvals.c.status.in_((PENDING, APPROVED))
        await self._changed((approvals.c.id == approval_id) & open_, {"status": CANCELLED})

    async def cancel_pending(self, run_id: str) -> None:
        """Take back what a run that is over has asked."""
        pending = (approvals.c.run_id == run_id) & (approvals.c.status == PENDING)
        if await self._database.rows(select(approvals.c.id).where(pending).limit(1)):
            await self._changed(pending, {"status": CANCELLED})

    async def granted_rules(self, thread: Thread, run_id: str | None) -> Sequence[str]:
        """Return the rules, as YAML, that were granted to a thread or to this run of it."""
        mine = or_(grants.c.run_id.is_(None), grants.c.run_id == (run_id or ""))
        query = select(grants.c.rule).where(grants.c.thread_id == thread.id, mine).order_by(grants.c.created_us)
        return [row.rule for row in await self._database.rows(query)]

    async def _found(self, *conditions: Any, limit: int | None = None) -> Sequence[Approval]:
        query = _QUERY.where(*conditions).order_by(*_NEWEST_FIRST)
        rows = await self._database.rows(query if limit is None else query.limit(limit))
        return [_approval(row) for row in rows]

    async def _changed(self, which: Any, changes: Mapping[str, Any]) -> int:
        return await self._database.transact(lambda connection: self._change(connection, which, changes))

    def _change(self, connection: Connection, which: Any, changes: Mapping[str, Any]) -> int:
        changed = {**changes, "changed_us": self._next_change(connection)}
        return connection.execute(update(approvals).where(which).values(**changed)).rowcount

    def _next_change(self, connection: Connection) -> int:
        """Return a time after every change so far, whatever the clocks of several gateways say."""
        last = connection.execute(select(func.max(approvals.c.changed_us))).scalar() or 0
        return max(self.clock(), last + 1)


def _approval(row: Row[Any]) -> Approval:
    return Approval(**{name: getattr(row, name) for name in Approval.__dataclass_fields__})
