"""The audit in the Python client: who did what, by which rule, and whether the record of it is complete.

The key must have the scope `audit`. A tenant's key reads its own chain; an operator's names a tenant, or reads the
operators' own chain.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airlock.audit_chain import AuditRecord, ChainReport
from airlock.errors import InvalidArgument
from airlock.messages import Fields, message, record
from airlock.v1 import audit_service_pb2 as pb
from airlock.wire import Wire


@dataclass(frozen=True)
class AuditQuery:
    """Filters records; an empty field matches all. A time without a zone is local; `until` is exclusive."""

    kinds: tuple[str, ...] = ()
    thread: str = ""
    run_id: str = ""
    tool: str = ""
    verdict: str = ""
    rule: str = ""
    actor: str = ""
    since: datetime | None = None
    until: datetime | None = None


ALL_RECORDS = AuditQuery()


class AuditCalls(Wire):
    """The calls of AuditService. Raises ScopeMissing if the key may not read the audit."""

    async def audit(
        self, query: AuditQuery = ALL_RECORDS, *, tenant: str = "", limit: int = 100
    ) -> Sequence[AuditRecord]:
        """Return records, newest first."""
        wanted: Fields = {"tenant": tenant, "filter": _filter(query), "limit": limit, "page_limit": 1000}
        return [one async for one in self._listed(_record, pb.QueryAuditRequest, "records", **wanted)]

    async def list_audit(self, query: AuditQuery = ALL_RECORDS, *, tenant: str = "") -> AsyncIterator[AuditRecord]:
        """Yield all records, newest first; they are fetched as they are needed."""
        wanted: Fields = {"tenant": tenant, "filter": _filter(query), "page_limit": 200}
        async for one in self._listed(_record, pb.QueryAuditRequest, "records", **wanted):
            yield one

    async def tail_audit(
        self,
        query: AuditQuery = ALL_RECORDS,
        *,
        tenant: str = "",
        from_sequence: int = 0,
        follow: bool = True,
        resume: bool = True,
    ) -> AsyncIterator[AuditRecord]:
        """Yield records in order from a sequence number on, with 0 only new ones; with `follow` without end.

        Without `resume`, a break raises Unavailable once a record has come.
        """
        if not from_sequence:
            newest = await self.audit(tenant=tenant, limit=1)
            from_sequence = newest[0].sequence + 1 if newest else 1
        asked: Fields = {"tenant": tenant, "filter": _filter(query), "follow": follow, "from_sequence": from_sequence}
        async for said in self._resumed(pb.TailAuditRequest, asked, patient=resume, resume=resume):
            yield _record(said.record)
            asked["from_sequence"] = said.record.sequence + 1

    async def verify_audit(self, *, tenant: str = "", known: tuple[int, str] | None = None) -> ChainReport:
        """Recompute the chain. `known` is the sequence number and digest of a record, noted earlier."""
        sequence, digest = known or (0, "")
        said = await self._ask(pb.VerifyAuditRequest, tenant=tenant, known_sequence=sequence, known_digest=digest)
        return record(ChainReport, said, problem=said.problem or ("" if said.whole else "changed"))


def _filter(query: AuditQuery) -> pb.AuditFilter:
    if isinstance(query.kinds, str):
        raise InvalidArgument("kinds: a tuple of names is expected")
    return message(pb.AuditFilter, **vars(query))


def _record(one: pb.AuditRecord) -> AuditRecord:
    at_us, duration_us = one.at.ToMicroseconds(), round(one.duration_ms * 1000)
    return record(AuditRecord, one, at_us=at_us, duration_us=duration_us, details=one.details_json)
