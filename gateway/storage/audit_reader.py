"""Reads the audit: pages, what follows a record, and whole chains slice by slice."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, select

from airlock.audit_chain import (
    COLUMNS,
    MISSING,
    NOTHING_KNOWN,
    AuditRecord,
    ChainCheck,
    ChainHead,
    ChainReport,
    Known,
)
from gateway.storage.queries import Queries, mapped, matching
from gateway.storage.tables import audit_heads, audit_records, runs, tool_calls

SLICE = 500
_RECORDS = audit_records.c
_QUERY = select(*(_RECORDS[name] for name in COLUMNS))


@dataclass(frozen=True)
class AuditFilter:
    """Selects records; an empty field matches all. Times are UTC microseconds since 1970, `until_us` excluded."""

    kinds: tuple[str, ...] = ()
    thread: str = ""
    run_id: str = ""
    tool: str = ""
    verdict: str = ""
    rule: str = ""
    actor: str = ""
    since_us: int | None = None
    until_us: int | None = None

    def conditions(self) -> Sequence[ColumnElement[bool]]:
        names = ("thread", "run_id", "tool", "verdict", "rule", "actor")
        wanted = matching({_RECORDS[name]: getattr(self, name) for name in names} | {_RECORDS.kind: self.kinds})
        if self.since_us is not None:
            wanted.append(_RECORDS.at_us >= self.since_us)
        if self.until_us is not None:
            wanted.append(_RECORDS.at_us < self.until_us)
        return wanted


EVERYTHING = AuditFilter()


class AuditReader(Queries):
    """Reads the chains of all tenants; the caller names the tenant."""

    async def heads(self) -> Mapping[str, ChainHead]:
        return {row.tenant: mapped(ChainHead, row) for row in await self._database.rows(select(audit_heads))}

    async def head(self, tenant: str) -> ChainHead | None:
        return await self._one(ChainHead, select(audit_heads).where(audit_heads.c.tenant == tenant))

    async def before(
        self, tenant: str, wanted: AuditFilter, *, sequence: int | None, limit: int
    ) -> Sequence[AuditRecord]:
        query = _QUERY.where(_RECORDS.tenant == tenant, *wanted.conditions())
        if sequence is not None:
            query = query.where(_RECORDS.sequence < sequence)
        return await self._all(AuditRecord, query.order_by(_RECORDS.sequence.desc()).limit(limit))

    async def after(
        self, tenant: str, wanted: AuditFilter, *, sequence: int, until: int | None = None
    ) -> Sequence[AuditRecord]:
        """Return a slice of the records after a sequence number, in order, up to `until`."""
        query = _QUERY.where(_RECORDS.tenant == tenant, _RECORDS.sequence > sequence, *wanted.conditions())
        if until is not None:
            query = query.where(_RECORDS.sequence <= until)
        return await self._all(AuditRecord, query.order_by(_RECORDS.sequence).limit(SLICE))

    async def chain(self, tenant: str) -> AsyncIterator[AuditRecord]:
        sequence = 0
        while found := await self.after(tenant, EVERYTHING, sequence=sequence):
            for record in found:
                yield record
            sequence = found[-1].sequence

    async def verified(self, tenant: str, known: Known = NOTHING_KNOWN) -> ChainReport:
        """Recompute a chain, from its first record to its current head."""
        while True:
            head = await self.head(tenant)
            check = ChainCheck(head, known)
            async for record in self.chain(tenant):
                if head is not None and record.sequence > head.sequence:
                    now = await self.head(tenant)
                    if now is not None and now.sequence > head.sequence:
                        break  # the chain has grown since
                check.take(record)
                if check.broken:
                    break
            report = check.report()
            if head is None and report.whole and await self._is_audited(tenant):
                gone = "the chain is gone, and calls or runs of this tenant are stored that were recorded in it"
                return replace(report, problem=f"{MISSING}: {gone}")
            # Records that retention pruned meanwhile are no break: check again what is there now.
            if report.whole or not await self._pruned(tenant, head):
                return report

    async def _is_audited(self, tenant: str) -> bool:
        """Whether anything is stored of a tenant that is never stored without an audit record."""
        calls = tool_calls.c
        return await self._has(calls.id, calls.tenant == tenant, calls.finished_us.is_not(None)) or await self._has(
            runs.c.id, runs.c.tenant == tenant
        )

    async def _pruned(self, tenant: str, head: ChainHead | None) -> bool:
        now = await self.head(tenant)
        first = head.first_sequence if head is not None else None
        return (now.first_sequence if now is not None else None) != first
