"""KeeperDecorator: a keeper around a keeper, which leaves everything to it. A subclass overrides what it is there for.

The order of those that a gateway has is in gateway/composition/sandboxes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from sandbox.keeper.keeper import Keeper
from sandbox.sandbox import ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import State


class KeeperDecorator:
    """Satisfies sandbox.keeper.keeper.Keeper, by the keeper that it is around."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    @property
    def live(self) -> int:
        return self.keeper.live

    def states(self) -> Mapping[State, int]:
        return self.keeper.states()

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self.keeper.acquire(spec)

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        return self.keeper.acquire_existing(spec)

    def at_hand(self, tenant: str, thread: str) -> Sandbox | None:
        return self.keeper.at_hand(tenant, thread)

    def users(self, tenant: str, thread: str) -> int:
        return self.keeper.users(tenant, thread)

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        return await self.keeper.stop(tenant, thread)

    def ends_s(self, one: ListedSandbox, spec: SandboxSpec) -> float | None:
        return self.keeper.ends_s(one, spec)
