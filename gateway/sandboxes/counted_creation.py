"""An engine around an engine that counts the sandboxes of each tenant by the minute, where its policy limits them.

What lives, and what was stopped and starts again, is none that is made. What is counted stays so when it could not be
made: to fail at it costs as much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.errors import QuotaExceeded
from gateway.policy.document import QuotasSection
from gateway.tenancy.quotas import Quotas
from sandbox.engines.engine import Engine, is_new
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.errors import TooManyCreations
from sandbox.sandbox import Sandbox, SandboxSpec

QuotasOf = Callable[[str], Awaitable[QuotasSection]]


def counted_creation(engine: Engine, quotas: Quotas, quotas_of: QuotasOf) -> Engine:
    """Return an engine whose create() raises TooManyCreations for one more than `quotas_of` a tenant lets it have."""
    return _CountedCreation(engine, quotas, quotas_of)


class _CountedCreation(EngineDecorator):
    def __init__(self, engine: Engine, quotas: Quotas, quotas_of: QuotasOf) -> None:
        super().__init__(engine)
        self._quotas = quotas
        self._quotas_of = quotas_of

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if is_new(self.engine, spec):
            try:
                await self._quotas.take_sandbox(spec.tenant, await self._quotas_of(spec.tenant))
            except QuotaExceeded as refused:
                raise TooManyCreations(
                    str(refused),
                    retry_after_s=refused.retry_after_s,
                    quota=refused.details["quota"],
                    limit=refused.details["limit"],
                ) from refused
        return await self.engine.create(spec)
