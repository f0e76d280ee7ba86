"""ImageGate: a keeper around a keeper that lends no sandbox of an image that the operator does not allow.

Which images these are is the policy's business, and is decided where a spec is made: it says why it is refused. A
sandbox of a spec that was allowed before is not lent either. Looking after what runs in one stays possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from sandbox.engine import Sandbox, SandboxSpec
from sandbox.errors import ImageRefused
from sandbox.sandbox_keeper import SandboxKeeper


def image_gate(keeper: SandboxKeeper) -> SandboxKeeper:
    """Return a keeper whose acquire() raises ImageRefused for a spec that is refused."""
    return cast(SandboxKeeper, _ImageGate(keeper))


class _ImageGate:
    def __init__(self, keeper: SandboxKeeper) -> None:
        self._keeper = keeper

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the keeper."""
        return getattr(self._keeper, name)

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if spec.refused:
            raise ImageRefused(spec.refused)
        async with self._keeper.acquire(spec) as sandbox:
            yield sandbox
