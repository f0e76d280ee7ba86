"""Counts the sandboxes that each tenant creates per minute, where its policy limits them.

A sandbox that lives, or that was stopped and starts again, is not counted. A creation that fails counts: it costs as
much.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.errors import QuotaExceeded
from gateway.policy.document import QuotasSection
from gateway.tenancy.quotas import SANDBOXES, Quotas
from sandbox.engines.engine import Creator, Register, is_new
from sandbox.errors import TooManyCreations
from sandbox.sandbox import Sandbox, SandboxSpec

QuotasOf = Callable[[str], Awaitable[QuotasSection]]


@dataclass(frozen=True)
class CountedCreation:
    """Satisfies Creator; create() raises TooManyCreations for one more than `quotas_of` a tenant allows."""

    inner: Creator
    register: Register
    quotas: Quotas
    quotas_of: QuotasOf

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if is_new(self.register, spec):
            try:
                await self.quotas.take_place(spec.tenant, await self.quotas_of(spec.tenant), SANDBOXES)
            except QuotaExceeded as refused:
                raise TooManyCreations(
                    str(refused),
                    retry_after_s=refused.retry_after_s,
                    quota=refused.details["quota"],
                    limit=refused.details["limit"],
                ) from refused
        return await self.inner.create(spec)
