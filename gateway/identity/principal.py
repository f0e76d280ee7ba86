"""The authenticated caller: tenant, credential and scopes, never taken from a request."""

from collections.abc import Hashable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

import grpc.aio

from gateway.credentials.caller import Caller
from gateway.credentials.keys import TENANT_SCOPES
from gateway.tenancy.tenants import Tenant


@dataclass(frozen=True)
class Principal:
    """The caller. `tenant` is None for an operator, whose credential belongs to no tenant.

    One that `makes_threads` may use a thread that is not there, which makes it.
    """

    tenant: Tenant | None
    caller: Caller = field(default_factory=Caller)
    scopes: tuple[str, ...] = TENANT_SCOPES
    makes_threads: bool = True


PRINCIPAL: ContextVar[Principal] = ContextVar("principal")
"""Set by gateway/serving/edge.py for each RPC."""


VOUCHED_KEY = "airlock_key_id"
"""Name in the `auth_context` of a call in this process: the id of the key whose holder makes it (in_process.py).

grpc names what it knows of a connection, and a peer cannot add to it.
"""
Context = grpc.aio.ServicerContext[Any, Any]
"""The grpc context of a call; authenticators also accept `CallCredentials` in its place."""


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """The part of a context that authenticators read: metadata, peer and, without a key, the certificate.

    A copy: the call guard checks it again later, and the grpc context of a call that has ended points to freed memory.
    """

    metadata: tuple[tuple[str, str | bytes], ...]
    address: str
    certificate: Mapping[str, Iterable[bytes]]

    @classmethod
    def by(cls, context: Any) -> Self:
        metadata = tuple((name, value) for name, value in context.invocation_metadata() or ())
        with_key = any(name == "authorization" for name, _ in metadata)
        return cls(metadata, context.peer(), {} if with_key else dict(context.auth_context()))

    @property
    def secret(self) -> Hashable:
        """What authenticators decide by: it is the same for all calls with one credential."""
        keys = tuple(value for name, value in self.metadata if name == "authorization")
        return keys, *(tuple(map(bytes, self.certificate.get(name) or ())) for name in ("x509_pem_cert", VOUCHED_KEY))

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def peer(self) -> str:
        return self.address

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self.certificate
