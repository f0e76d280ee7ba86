"""Who calls: for which tenant, by which credential, and what that is for. Never taken from a request."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.credentials.caller import Caller
from gateway.credentials.keys import TENANT_SCOPES

if TYPE_CHECKING:
    from gateway.tenancy.tenants import (
        Tenant,  # whose policy is read from the database, which shares its readers by tenant
    )


@dataclass(frozen=True)
class Principal:
    """Who calls. `tenant` is None for an operator, whose credential belongs to no tenant."""

    tenant: Tenant | None
    caller: Caller = field(default_factory=Caller)
    scopes: tuple[str, ...] = TENANT_SCOPES


PRINCIPAL: ContextVar[Principal] = ContextVar("principal")
"""Set beside it; gateway/serving/edge.py reads it for an RPC."""
