"""The audit in the Python client: who did what, by which rule, and whether the record of it is whole.

The key must have the scope `audit`. A tenant's reads its own chain; an operator's says whose, and by default reads the
operators' own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.audit_chain.chain import ChainReport
from gateway.audit_chain.record import AuditRecord
from gateway.client.messages import message, record, timestamp
from gateway.client.wire import Wire
from gateway.errors import InvalidArgument
from gateway.v1 import audit_service_pb2 as pb
from gateway.v1 import audit_service_pb2_grpc as grpc_pb

_PAGE_LIMIT = 1000


@dataclass(frozen=True)
class AuditQuery:
    """Chooses records; what is empty does not matter. A time without a zone is this machine's; `until` is not in."""

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
    """The calls of AuditService. ScopeMissing where the key may not read the audit."""

    async def audit(
        self, query: AuditQuery = ALL_RECORDS, *, tenant: str = "", limit: int = 100
    ) -> Sequence[AuditRecord]:
        """Return records, the newest first."""
        asked: dict[str, Any] = {"tenant": tenant, "filter": _filter(query), "limit": limit, "page_limit": _PAGE_LIMIT}
        found = self._listed(self._audit.QueryAudit, pb.QueryAuditRequest, "records", **asked)
        return [_record(one) async for one in found]

    async def tail_audit(
        self,
        query: AuditQuery = ALL_RECORDS,
        *,
        tenant: str = "",
        from_sequence: int = 0,
        follow: bool = True,
        resume: bool = True,
    ) -> AsyncIterator[AuditRecord]:
        """Yield records in their order from a sequence number on, 0 for what is new; with `follow` without end.

        Where the connection breaks, or the gateway is restarted, it goes on after the last record that came, as long as
        the client's Retry says; without `resume` that is Unavailable once a record has come.
        """
        if not from_sequence:
            newest = await self.audit(tenant=tenant, limit=1)
            from_sequence = newest[0].sequence + 1 if newest else 1
        wanted = _filter(query)

        def request_now() -> pb.TailAuditRequest:
            return message(
                pb.TailAuditRequest, tenant=tenant, filter=wanted, from_sequence=from_sequence, follow=follow
            )

        tail = self._audit.TailAudit
        answers = self._resumed(tail, request_now) if resume else self._stream(tail, request_now(), safe=True)
        async for said in answers:
            yield _record(said.record)
            from_sequence = said.record.sequence + 1

    async def verify_audit(self, *, tenant: str = "", known: tuple[int, str] | None = None) -> ChainReport:
        """Have the chain computed again. `known` is the sequence number and digest of a record, noted earlier."""
        sequence, digest = known or (0, "")
        known_record = {"known_sequence": sequence, "known_digest": digest}
        said = await self._ask(self._audit.VerifyAudit, pb.VerifyAuditRequest, tenant=tenant, **known_record)
        return record(ChainReport, said, problem=said.problem or ("" if said.whole else "changed"))

    @property
    def _audit(self) -> Any:
        return self._stub(grpc_pb.AuditServiceStub)


def _filter(query: AuditQuery) -> pb.AuditFilter:
    if isinstance(query.kinds, str):
        raise InvalidArgument("kinds: a tuple of names is expected")
    return message(pb.AuditFilter, **{**vars(query), "since": timestamp(query.since), "until": timestamp(query.until)})


def _record(one: pb.AuditRecord) -> AuditRecord:
    at_us, duration_us = one.at.ToMicroseconds(), round(one.duration_ms * 1000)
    return record(AuditRecord, one, at_us=at_us, duration_us=duration_us, details=one.details_json)
