"""EngineDecorator: an engine around an engine, which forwards everything. A subclass overrides what it is for.

    class Logged(EngineDecorator):
        async def create(self, spec: SandboxSpec) -> Sandbox:
            log.info("making a sandbox of image %s", spec.image)
            return await self.engine.create(spec)

The order of those that a gateway has is in gateway/composition/engine_decorators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sandbox.engines.engine import Engine, Saved
from sandbox.engines.workspace_archive import Contents
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import UNUSED
from sandbox.usage import Usage


class EngineDecorator:
    """Satisfies sandbox.engine.Engine, by the engine that it is around. The protocol says what each method does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def id(self) -> str:
        return await self.engine.id()

    def has(self, spec: SandboxSpec) -> bool:
        return self.engine.has(spec)

    def stopped(self, spec: SandboxSpec) -> str | None:
        return self.engine.stopped(spec)

    def stopped_count(self) -> int:
        return self.engine.stopped_count()

    def owners(self) -> Sequence[tuple[str, str]]:
        return self.engine.owners()

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        return await self.engine.stop(tenant, thread)

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        return await self.engine.remove_of(tenant, thread)

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        return await self.engine.end_calls(tenant, thread, overdue=overdue)

    async def reconcile(self) -> Sequence[LeftSandbox]:
        return await self.engine.reconcile()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.engine.create(spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        return await self.engine.find(spec)

    async def stop_idle(self, sandbox_id: str) -> bool:
        return await self.engine.stop_idle(sandbox_id)

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        return await self.engine.trim_stopped(timeout_s=timeout_s, limit=limit)

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        return await self.engine.remove_idle(tenant, stop=stop)

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        await self.engine.remove(sandbox_id, reason)

    async def remove_workspaces(self) -> None:
        await self.engine.remove_workspaces()

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        return await self.engine.listed(tenant)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        return await self.engine.usage(sandbox)

    async def owned(self) -> Mapping[str, bool]:
        return await self.engine.owned()

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], Saved]) -> Saved | None:
        return await self.engine.save_workspace(spec, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        await self.engine.replace_workspace(spec, give, size_bytes=size_bytes)

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        return await self.engine.remove_workspace(tenant, thread)

    async def remove_all_of(self, tenant: str) -> int:
        return await self.engine.remove_all_of(tenant)

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        return await self.engine.left_of(tenant)

    async def prepare(self) -> None:
        await self.engine.prepare()

    async def close(self, *, keep_sandboxes: bool = False) -> None:
        await self.engine.close(keep_sandboxes=keep_sandboxes)
