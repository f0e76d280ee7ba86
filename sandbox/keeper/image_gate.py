"""ImageGate: a keeper around a keeper that lends no sandbox of an image that the operator does not allow.

Which images these are is the policy's business, and is decided where a spec is made: it says why it is refused. A
sandbox of a spec that was allowed before is not lent either. Looking after what runs in one stays possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.errors import ImageRefused
from sandbox.keeper.keeper import Keeper
from sandbox.keeper.keeper_decorator import KeeperDecorator
from sandbox.sandbox import Sandbox, SandboxSpec


def image_gate(keeper: Keeper) -> Keeper:
    """Return a keeper whose acquire() raises ImageRefused for a spec that is refused."""
    return _ImageGate(keeper)


class _ImageGate(KeeperDecorator):
    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if spec.refused:
            raise ImageRefused(spec.refused)
        async with self.keeper.acquire(spec) as sandbox:
            yield sandbox
