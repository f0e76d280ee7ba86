"""The calls that the journal holds, read page by page: memory does not grow with the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import and_, or_, select

from gateway.storage.database import Database
from gateway.storage.tables import runs, threads, tool_calls

_PAGE_ROWS = 200
_CALLS = tool_calls.c


@dataclass(frozen=True)
class RecordedCall:
    """One call of the journal.

    `arguments` is the JSON that was kept of them, which may be cut short: then its digest is not `arguments_digest`.
    `thread` is the thread's name, `agent` is "" for a call outside runs, `started_us` is UTC microseconds since 1970.
    `verdict` is None for a call that has none yet; `asked` says that a person was asked.
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
            _CALLS.id,
            _CALLS.name,
            _CALLS.arguments,
            _CALLS.arguments_digest,
            _CALLS.verdict,
            _CALLS.rule,
            _CALLS.approval_id,
            _CALLS.started_us,
            _CALLS.run_id,
            threads.c.name.label("thread"),
            runs.c.agent,
        )
        .join(threads, threads.c.id == _CALLS.thread_id)
        .outerjoin(runs, runs.c.id == _CALLS.run_id)
        .where(_CALLS.tenant == tenant)
        .order_by(_CALLS.started_us, _CALLS.id)
        .limit(_PAGE_ROWS)
    )
    while True:
        # The first half is what the index is for; the second keeps calls of one microsecond apart.
        beyond = or_(_CALLS.started_us > after_us, and_(_CALLS.started_us == after_us, _CALLS.id > after_id))
        page = await database.rows(query.where(_CALLS.started_us >= after_us, beyond))
        for row in page:
            yield RecordedCall(
                id=row.id,
                tenant=tenant,
                thread=row.thread,
                run_id=row.run_id or "",
                agent=row.agent or "",
                tool=row.name,
                arguments=row.arguments,
                arguments_digest=row.arguments_digest,
                verdict=row.verdict,
                rule=row.rule or "",
                asked=row.approval_id is not None,
                started_us=row.started_us,
            )
        if len(page) < _PAGE_ROWS:
            return
        after_us, after_id = page[-1].started_us, page[-1].id
