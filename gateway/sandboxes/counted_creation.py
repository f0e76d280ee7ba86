"""Counts the sandboxes that each tenant creates per minute, where its policy limits them.

A sandbox that lives, or that was stopped and starts again, is not counted. A creation that fails counts: it costs as
much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.errors import QuotaExceeded
from gateway.policy.document import QuotasSection
from gateway.tenancy.quotas import Quotas
from sandbox.engines.engine import Creator, Register, is_new
from sandbox.errors import TooManyCreations
from sandbox.sandbox import Sandbox, SandboxSpec

QuotasOf = Callable[[str], Awaitable[QuotasSection]]


class CountedCreation:
    """Satisfies Creator; create() raises TooManyCreations for one more than `quotas_of` a tenant allows."""

    def __init__(self, inner: Creator, register: Register, quotas: Quotas, quotas_of: QuotasOf) -> None:
        self.inner = inner
        self._register = register
        self._quotas = quotas
        self._quotas_of = quotas_of

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if is_new(self._register, spec):
            try:
                await self._quotas.take_sandbox(spec.tenant, await self._quotas_of(spec.tenant))
            except QuotaExceeded as refused:
                raise TooManyCreations(
                    str(refused),
                    retry_after_s=refused.retry_after_s,
                    quota=refused.details["quota"],
                    limit=refused.details["limit"],
                ) from refused
        return await self.inner.create(spec)
