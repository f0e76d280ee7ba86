"""Creates sandboxes for threads that are there and accept calls.

A written call keeps its thread from being deleted. A call that only reads is written once it is over, so its thread may
be deleted in the midst of it; then it must not get another sandbox, which would belong to no thread.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.engines.engine import Creator
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxSpec


@dataclass(frozen=True)
class CreationInThreads:
    """Satisfies Creator; `is_open` returns whether a tenant's thread accepts calls."""

    inner: Creator
    is_open: Callable[[str, str], Awaitable[bool]]

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if not await self.is_open(spec.tenant, spec.thread):
            raise SandboxUnavailable("the thread is being deleted or its files are being restored: make the call again")
        return await self.inner.create(spec)
