"""UsageService over the totals in the database, and usage as a message."""

from collections.abc import Collection
from dataclasses import dataclass

from airlock.v1 import run_service_pb2 as run_pb
from airlock.v1 import usage_service_pb2 as pb
from gateway.credentials.keys import OPERATE
from gateway.errors import InvalidArgument, NotFound
from gateway.services.messages import message, microseconds, name_of, timestamp
from gateway.serving.edge import Authenticator, unary
from gateway.storage.usage_store import RunUse, UsageStore, Used, day_us, total_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import usage_service_pb2_grpc as grpc_pb

_ROWS_LIMIT = 10_000


@dataclass(eq=False)
class UsageService(grpc_pb.UsageServiceServicer):
    """Adds up what tenants use; `configured` are the tenants of the configuration."""

    scope = "run"
    operator_scope = OPERATE
    for_operators = True

    store: UsageStore
    configured: Collection[str]
    authenticate: Authenticator

    @unary
    async def GetUsage(self, tenant: Tenant | None, request: pb.GetUsageRequest) -> pb.GetUsageResponse:
        whose = await self._whose(tenant, request.tenant)
        since_us = microseconds(request, "since")
        until_us = microseconds(request, "until")
        by = {name_of(pb.UsageGroup, group) for group in request.by}
        found = await self.store.totals(whose, by, since_us=since_us, until_us=until_us, limit=_ROWS_LIMIT + 1)
        if len(found) > _ROWS_LIMIT:
            raise InvalidArgument(f"by: more than {_ROWS_LIMIT:,} totals; ask for fewer days, or add up by less")
        totals = [message(pb.UsageTotal, total, usage=usage_message(total.used)) for total in found]
        since = timestamp(day_us(since_us) * 1000) if since_us is not None else None
        return pb.GetUsageResponse(totals=totals, since=since)

    async def _whose(self, tenant: Tenant | None, asked: str) -> str:
        """Return whose usage is read; NotFound for another tenant's, whether or not it exists."""
        if tenant is not None:
            if asked not in ("", tenant.name):
                raise NotFound(f"a tenant's key cannot read the usage of tenant {asked!r}: omit `tenant`")
            return tenant.name
        if not asked:
            raise InvalidArgument("tenant: an operator names the tenant whose usage is added up")
        if asked not in self.configured and not await self.store.knows(asked):
            raise NotFound(f"tenant {asked[:64]!r} is not configured and has used nothing: check the name")
        return asked


def usage_message(used: Used) -> pb.Usage:
    """Return an amount of usage."""
    return message(pb.Usage, used.usage, requests=used.requests)


def run_usage(uses: Collection[RunUse]) -> dict[str, object]:
    """Return the fields of a Run about its usage."""
    models = [
        run_pb.ModelUse(
            agent=use.agent,
            model=use.model,
            usage=usage_message(use.used),
            first_token_ms=use.first_token_ms,
        )
        for use in uses
        if use.used.requests
    ]
    return {"usage": usage_message(total_of(uses)), "models": models}
