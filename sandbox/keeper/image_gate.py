"""ImageGate: leases no sandbox of an image that the operator does not allow.

The policy decides which images these are, when it makes a spec, and notes there why one is refused. A sandbox that was
made while its image was allowed is not leased either. Looking at one that lives stays possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sandbox.errors import ImageRefused
from sandbox.keeper.keeper import Leases
from sandbox.sandbox import Sandbox, SandboxSpec


class ImageGate:
    """Satisfies Leases; acquire() raises ImageRefused for a spec that is refused."""

    def __init__(self, inner: Leases) -> None:
        self._inner = inner

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if spec.refused:
            raise ImageRefused(spec.refused)
        async with self._inner.acquire(spec) as sandbox:
            yield sandbox

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self._inner.acquire_existing(spec)
