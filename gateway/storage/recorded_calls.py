"""The calls in the journal, read page by page: memory does not grow with the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select

from gateway.storage.database import Database
from gateway.storage.rows import mapped
from gateway.storage.tables import runs, threads, tool_calls

_PAGE_ROWS = 200
_CALLS = tool_calls.c


@dataclass(frozen=True)
class RecordedCall:
    """One call of the journal.

    `arguments` is the stored JSON, which may be cut: then its digest is not `arguments_digest`. `thread` is the
    thread's name, `agent` is "" for a call outside runs, `started_us` is UTC microseconds since 1970. `verdict` is None
    for a call that has none yet; `asked`: an approval was requested.
    """

    id: str
    tenant: str
    thread: str
    run_id: str
    agent: str
    tool: str
    arguments: str
    arguments_digest: str
    verdict: str | None
    rule: str
    asked: bool
    started_us: int


async def recorded_calls(database: Database, since_us: int, tenant: str | None = None) -> AsyncIterator[RecordedCall]:
    """Yield the calls since a time, of one tenant or of all, each tenant's oldest first."""
    tenants = [tenant] if tenant is not None else await _tenants(database, since_us)
    for one in tenants:
        async for call in _of_tenant(database, since_us, one):
            yield call


async def _tenants(database: Database, since_us: int) -> list[str]:
    query = select(_CALLS.tenant).where(_CALLS.started_us >= since_us).distinct().order_by(_CALLS.tenant)
    return [row.tenant for row in await database.rows(query)]


async def _of_tenant(database: Database, since_us: int, tenant: str) -> AsyncIterator[RecordedCall]:
    after_us, after_id = since_us, ""
    query = (
        select(
            *(_CALLS[name] for name in ("id", "arguments", "arguments_digest", "verdict", "started_us")),
            _CALLS.name.label("tool"),
            func.coalesce(_CALLS.rule, "").label("rule"),
            func.coalesce(_CALLS.run_id, "").label("run_id"),
            func.coalesce(runs.c.agent, "").label("agent"),
            _CALLS.approval_id.is_not(None).label("asked"),
            threads.c.name.label("thread"),
        )
        .join(threads, threads.c.id == _CALLS.thread_id)
        .outerjoin(runs, runs.c.id == _CALLS.run_id)
        .where(_CALLS.tenant == tenant)
        .order_by(_CALLS.started_us, _CALLS.id)
        .limit(_PAGE_ROWS)
    )
    while True:
        # The first condition is for the index; the second separates calls of the same microsecond.
        beyond = or_(_CALLS.started_us > after_us, and_(_CALLS.started_us == after_us, _CALLS.id > after_id))
        page = await database.rows(query.where(_CALLS.started_us >= after_us, beyond))
        for row in page:
            yield mapped(RecordedCall, row, tenant=tenant, asked=bool(row.asked))
        if len(page) < _PAGE_ROWS:
            return
        after_us, after_id = page[-1].started_us, page[-1].id
