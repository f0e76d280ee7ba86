"""The authenticated caller: tenant, credential and scopes. Never taken from a request."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from gateway.credentials.caller import Caller
from gateway.credentials.keys import TENANT_SCOPES
from gateway.tenancy.tenants import Tenant


@dataclass(frozen=True)
class Principal:
    """The caller. `tenant` is None for an operator, whose credential belongs to no tenant."""

    tenant: Tenant | None
    caller: Caller = field(default_factory=Caller)
    scopes: tuple[str, ...] = TENANT_SCOPES


PRINCIPAL: ContextVar[Principal] = ContextVar("principal")
"""Set by gateway/serving/edge.py for each RPC."""
