"""The queries of what was granted with approvals: rules that a thread, or a run, holds until they are taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, exists, or_, select, update

from gateway.credentials.caller import actor
from gateway.storage.approval_writes import APPROVED, CANCELLED, came_before, change_approvals
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.tables import approvals, grants, runs, threads
from gateway.support.clock import NowUs, now_us

_GRANT_COLUMNS = ("id", "tenant", "run_id", "rule", "approval_id", "created_us", "revoked_us")
_GRANTED_TO_ALL = grants.c.run_id.is_(None)
_RUN_GOES_ON = exists().where(runs.c.id == grants.c.run_id, runs.c.status.in_(("running", "waiting")))
_IN_FORCE = grants.c.revoked_us.is_(None) & or_(_GRANTED_TO_ALL, _RUN_GOES_ON)
_GRANTS = (
    select(
        *(grants.c[name] for name in _GRANT_COLUMNS),
        threads.c.name.label("thread"),
        approvals.c.resolved_by.label("granted_by"),
        case((_IN_FORCE, 1), else_=0).label("in_force"),
    )
    .join(threads, grants.c.thread_id == threads.c.id)
    .join(approvals, grants.c.approval_id == approvals.c.id)
)


@dataclass(frozen=True)
class NewGrant:
    """A rule, as YAML, that calls of the thread pass by, or calls of `run_id` alone."""

    id: str
    rule: str
    run_id: str | None


@dataclass(frozen=True)
class Grant:
    """A grant as it is stored; `thread` is the thread's name, `granted_by` who gave the answer that made it.

    It is `in_force` until it is revoked, or the run that it is for is over.
    """

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


class GrantStore:
    """Typed access to the grants; an answer that makes one writes it (approval_store.py)."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._audit = AuditStore(database, clock)
        self._clock = clock

    async def rules(self, thread: Thread, run_id: str | None) -> Sequence[tuple[str, str]]:
        """Return the rules, as YAML, that a thread or this run of it holds by now, each with its approval's id."""
        mine = or_(_GRANTED_TO_ALL, grants.c.run_id == (run_id or ""))
        query = select(grants.c.rule, grants.c.approval_id).where(
            grants.c.thread_id == thread.id, grants.c.revoked_us.is_(None), mine
        )
        return [(row.rule, row.approval_id) for row in await self._database.rows(query.order_by(grants.c.created_us))]

    async def get(self, tenant: str, grant_id: str) -> Grant | None:
        """Return a grant of a tenant."""
        rows = await self._database.rows(_GRANTS.where(grants.c.id == grant_id, grants.c.tenant == tenant))
        return _grant(rows[0]) if rows else None

    async def page(
        self, tenant: str, *, thread: str | None, include_ended: bool, before: tuple[int, str] | None, limit: int
    ) -> Sequence[Grant]:
        """Return grants, the newest first; `before` is when the last one of the page before was made, and its id."""
        conditions: list[ColumnElement[bool]] = [grants.c.tenant == tenant]
        if thread is not None:
            conditions.append(threads.c.name == thread)
        if not include_ended:
            conditions.append(_IN_FORCE)
        if before is not None:
            conditions.append(came_before(grants, *before))
        query = _GRANTS.where(*conditions).order_by(grants.c.created_us.desc(), grants.c.id.desc()).limit(limit)
        return [_grant(row) for row in await self._database.rows(query)]

    async def revoke(self, tenant: str, grant_id: str) -> bool:
        """Take a grant back, and its approval where the call it is for has not run; return whether anything was."""
        held = (grants.c.id == grant_id) & (grants.c.tenant == tenant) & grants.c.revoked_us.is_(None)
        revoked = update(grants).where(held).values(revoked_us=self._clock())
        approval_id = select(grants.c.approval_id).where(grants.c.id == grant_id).scalar_subquery()
        unused = (approvals.c.id == approval_id) & (approvals.c.status == APPROVED)
        by = actor()

        def work(connection: Connection) -> bool:
            if not connection.execute(revoked).rowcount:
                return False
            change_approvals(connection, unused, {"status": CANCELLED}, self._clock)
            row = connection.execute(_GRANTS.where(grants.c.id == grant_id)).one()
            self._audit.append(connection, entries=[_revoked(row, by)])
            return True

        return await self._database.transact(work)


def _revoked(row: Any, by: str) -> AuditEntry:
    details = {"grant_id": row.id, "approval_id": row.approval_id}
    return AuditEntry(row.tenant, "grant_revoked", by, thread=row.thread, run_id=row.run_id or "", details=details)


def _grant(row: Row[Any]) -> Grant:
    columns = {name: getattr(row, name) for name in (*_GRANT_COLUMNS, "thread", "granted_by")}
    return Grant(**columns, in_force=bool(row.in_force))
