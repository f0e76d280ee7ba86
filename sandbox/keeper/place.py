"""The place of one thread's sandbox in this process, and the table of all places."""

from __future__ import annotations

import asyncio

from sandbox.keeper.removals import Removals
from sandbox.owner import Owner
from sandbox.sandbox import Sandbox


class Place:
    """Where a thread's sandbox is: being made, leased `users` times, or idle since `used_s`."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.sandbox: Sandbox | None = None
        # The id of the sandbox that an earlier process left, until the engine has taken it over or replaced it.
        self.left: str | None = None
        self.users = 0
        self.used_s = 0.0
        # How long it may be idle by its tenant's policy; None for the keeper's own limit.
        self.idle_timeout_s: float | None = None
        self.leaving: asyncio.Task[None] | None = None

    @property
    def occupied(self) -> bool:
        """Whether there is a sandbox, of this process or an earlier one."""
        return self.sandbox is not None or self.left is not None


class Places:
    """The places of this process, by owner_of(): an earlier process' sandboxes are known by digests only."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self.by_owner: dict[Owner, Place] = {}

    def enter(self, owner: Owner) -> Place:
        """Return an owner's place, made if there is none, with one user more."""
        place = self.by_owner.setdefault(owner, Place())
        place.users += 1
        return place

    def forget(self, owner: Owner, place: Place, *, stop: bool = False) -> None:
        """Drop a place; its sandbox is removed in the background, or stopped with `stop`."""
        if self.by_owner.get(owner) is place:
            del self.by_owner[owner]
        if place.sandbox is not None:
            self._removals.begin_removal(owner, place.sandbox.id, stop=stop and place.sandbox.alive)
            place.sandbox = None
        if place.left is not None:
            self._removals.begin_removal(owner, place.left, stop=stop)
            place.left = None

    def forget_idle(self, tenant: str) -> bool:
        """Forget a tenant's longest idle place, stopping its sandbox; return whether there was one."""
        idle = [
            (place.used_s, owner) for owner, place in self.by_owner.items() if owner[0] == tenant and place.users == 0
        ]
        if idle:
            _, owner = min(idle)
            self.forget(owner, self.by_owner[owner], stop=True)
        return bool(idle)
