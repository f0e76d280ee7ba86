"""AuditService over gateway.audit.audit. A tenant's key reads its own records; an operator names the tenant."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airlock.audit_chain import AuditRecord
from airlock.v1 import audit_service_pb2 as pb
from gateway.audit.audit import Audit
from gateway.errors import InvalidArgument, NotFound, Unavailable
from gateway.services.messages import message, microseconds, paging
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.audit_reader import AuditFilter
from gateway.tenancy.tenants import Tenant
from gateway.v1 import audit_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class AuditService(grpc_pb.AuditServiceServicer):
    """Shows the audit."""

    scope = "audit"
    for_operators = True

    audit: Audit
    authenticate: Authenticator

    @unary
    async def QueryAudit(self, tenant: Tenant | None, request: pb.QueryAuditRequest) -> pb.QueryAuditResponse:
        whose = await self._whose(tenant, request.tenant)
        found, token = await self.audit.page(whose, _filter(request.filter), **paging(request))
        return pb.QueryAuditResponse(records=[_record(one) for one in found], next_page_token=token)

    @streaming
    async def TailAudit(
        self, tenant: Tenant | None, request: pb.TailAuditRequest
    ) -> AsyncIterator[pb.TailAuditResponse]:
        """Stream records; one that follows ends with Unavailable when the gateway stops."""
        whose = await self._whose(tenant, request.tenant)
        wanted = _filter(request.filter)
        async for record in self.audit.tail(whose, wanted, from_sequence=request.from_sequence, follow=request.follow):
            yield pb.TailAuditResponse(record=_record(record))
        if request.follow:
            raise Unavailable(
                "the gateway is shutting down: follow again, from the next sequence number, when it is back"
            )

    @unary
    async def VerifyAudit(self, tenant: Tenant | None, request: pb.VerifyAuditRequest) -> pb.VerifyAuditResponse:
        if bool(request.known_sequence) != bool(request.known_digest):
            raise InvalidArgument("known_digest: must be used with known_sequence, the number of its record")
        known = {request.known_sequence: request.known_digest} if request.known_sequence else {}
        report = await self.audit.verified(await self._whose(tenant, request.tenant), known)
        return message(pb.VerifyAuditResponse, report)

    async def _whose(self, tenant: Tenant | None, asked: str) -> str:
        """Return whose records are read; NotFound for another tenant's, whether or not it exists."""
        if tenant is None:
            await self.audit.check_known(asked)
            return asked
        if asked not in ("", tenant.name):
            raise NotFound(
                f"a tenant's key cannot read the audit of tenant {asked!r}: omit `tenant` to read the key's own"
            )
        return tenant.name


def _filter(asked: pb.AuditFilter) -> AuditFilter:
    return AuditFilter(
        kinds=tuple(asked.kinds),
        since_us=microseconds(asked, "since"),
        until_us=microseconds(asked, "until"),
        **{name: getattr(asked, name) for name in ("thread", "run_id", "tool", "verdict", "rule", "actor")},
    )


def _record(record: AuditRecord) -> pb.AuditRecord:
    return message(pb.AuditRecord, record, duration_ms=record.duration_us / 1000, details_json=record.details)
