"""SandboxKeeper: leases each thread its one sandbox, and creates, replaces and removes sandboxes as needed.

There is one sandbox per tenant and thread. It is created once however many calls ask at the same time, replaced over
the same workspace when it died, stopped when idle, and started again by the next call. An idle one, of the tenant with
the most, is stopped when too many live (places.py). One that is stopped for long is removed. Stopping and removal
happen in the background: no call waits for them, except the one that replaces a dead sandbox, whose
processes may still write.

No call begins in a sandbox past its lifetime: it waits for the calls under way there, of any process, and gets a new
sandbox. Calls that go on for GRACE_S after the lifetime end with the sandbox. So a sandbox runs for its lifetime,
GRACE_S, and the time between two sweeps at most.

Sandboxes that an earlier process left alive count as live and idle from the start, until a call of their thread takes
them. Where several processes have a thread's sandbox, the last to find it idle removes it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from sandbox.engines.engine import Creator, Leasing
from sandbox.engines.lifetime import GRACE_S
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.keeper.places import KeeperLimits, Place, Places
from sandbox.sandbox import LeftSandbox, ListedSandbox, Owner, Sandbox, SandboxSpec, owner_by_name, owner_of
from sandbox.transition import MADE_OTHERWISE, NO_ANSWER, STOPPING, State

log = logging.getLogger(__name__)

# How often a call that waits for a sandbox past its lifetime looks again: other processes' calls send no signal.
_LOOK_S = 0.05


class SandboxKeeper:
    """Satisfies Leases, for one gateway process. `creator` makes what `engine` keeps."""

    def __init__(
        self, engine: Leasing, creator: Creator, limits: KeeperLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._creator = creator
        self._limits = limits
        self._clock = clock
        self._places = Places(engine, limits, clock)
        self._closed = False
        self._keeps = False

    @property
    def live(self) -> int:
        """How many sandboxes this process has or makes."""
        return len(self._places.by_owner)

    def states(self) -> Mapping[State, int]:
        """Return how many sandboxes this process is making, how many it has, and how many of all are stopped."""
        occupied = [place.occupied for place in list(self._places.by_owner.values())]
        return {
            "creating": occupied.count(False),
            "running": occupied.count(True),
            "idle_stopped": self._engine.stopped_count(),
        }

    def living(self) -> list[Sandbox]:
        """Return the sandboxes that this process has, without a lease, as at_hand() does."""
        found = [place.sandbox for place in self._places.by_owner.values()]
        return [sandbox for sandbox in found if sandbox is not None and sandbox.alive]

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox as Engine.stop() does; where none is to stay stopped it is removed."""
        if not self._limits.keeps_stopped:
            was = await self._engine.remove_of(tenant, thread)
            return None if was is None else replace(was, state="removed")
        stopped = await self._engine.stop(tenant, thread)
        owner = owner_by_name(tenant, thread)
        place = self._places.by_owner.get(owner)
        if place is not None and place.sandbox is not None and not place.sandbox.alive:
            place.sandbox = None  # stopped, not lost: it must not be removed for that
            if not place.users:
                self._places.forget(owner, place)
        self._places.background.begin(self._places.trim_logged())
        return stopped

    def ends_s(self, one: ListedSandbox, spec: SandboxSpec) -> float | None:
        """Return when an idle sandbox is stopped, or a stopped one removed, unless a call asks for it.

        In seconds since 1970, and a moment early, for idle sandboxes are swept at intervals. None for never.
        """
        if one.since_s is None:
            return None
        if one.state == "idle_stopped":
            return one.since_s + self._limits.stopped_timeout_s
        return one.since_s + (self._limits.idle_timeout_s if spec.idle_timeout_s is None else spec.idle_timeout_s)

    async def adopt(self, left: Iterable[LeftSandbox]) -> None:
        """Keep what an earlier process left, as idle; what is past the limits, counted from the first, is removed."""
        self._places.begin_sweeps()
        await self._places.adopt(left)

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self._refuse_closed()
        owner = owner_of(spec)
        if owner not in self._places.by_owner and not self._engine.has(spec):
            await self._places.make_room(owner[0])
        place = self._places.enter(owner)
        place.idle_timeout_s = spec.idle_timeout_s
        self._places.begin_sweeps(spec.idle_timeout_s)
        try:
            sandbox = place.sandbox
            if sandbox is None or not (self._fresh(place, sandbox, spec) and sandbox.borrow()):
                async with place.lock:
                    sandbox = await self._borrowed(place, spec)
            try:
                yield sandbox
            finally:
                sandbox.give_back()
        finally:
            self._leave(owner, place)

    @asynccontextmanager
    async def acquire_existing(self, spec: SandboxSpec) -> AsyncIterator[Sandbox | None]:
        self._refuse_closed()
        owner = owner_of(spec)
        if owner not in self._places.by_owner and not self._engine.has(spec):
            yield None
            return
        place = self._places.enter(owner)
        try:
            sandbox = place.sandbox
            # A busy one lives, past its lifetime too: a look does not wait with the calls that want a new sandbox.
            usable = sandbox is not None and (
                (sandbox.alive and sandbox.busy) or self._fresh(place, sandbox, sandbox.spec)
            )
            if sandbox is None or not (usable and sandbox.borrow()):
                async with place.lock:
                    sandbox = await self._living(place, spec)
                    if sandbox is not None and not sandbox.borrow():
                        sandbox = None
            try:
                yield sandbox
            finally:
                if sandbox is not None:
                    sandbox.give_back()
        finally:
            self._leave(owner, place)

    def at_hand(self, tenant: str, thread: str) -> Sandbox | None:
        """Return a thread's sandbox if this process has it, without a lease: it does not reset the idle timer.

        The sandbox may be removed meanwhile, which raises DaemonLost in the caller.
        """
        place = self._places.by_owner.get(owner_by_name(tenant, thread))
        return None if place is None or place.sandbox is None or not place.sandbox.alive else place.sandbox

    def users(self, tenant: str, thread: str) -> int:
        """Return how many calls of this process are under way in a thread's sandbox."""
        place = self._places.by_owner.get(owner_by_name(tenant, thread))
        return 0 if place is None else place.users

    def sweep(self) -> None:
        self._places.sweep()

    async def close(self, *, keep_sandboxes: bool = False, remove_workspaces: bool = False) -> None:
        """Remove every sandbox, busy ones too, and wait for it; with `remove_workspaces` all threads' files too.

        With `keep_sandboxes` those that are alive stay as they are, for the next process.
        """
        self._closed = True
        self._keeps = keep_sandboxes
        self._places.closing = True
        await self._places.end_sweeps()
        if not keep_sandboxes:
            for owner, place in list(self._places.by_owner.items()):
                self._places.forget(owner, place)
        await self.settled()
        if remove_workspaces:
            try:
                await self._engine.remove_workspaces()
            except SandboxError as error:
                log.warning("workspaces could not be removed: %s", error)

    async def settled(self) -> None:
        await self._places.background.settled()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the gateway is shutting down: try again when it is back")

    async def _kept_open(self, sandbox: Sandbox | None) -> None:
        """Raise SandboxUnavailable if the keeper was closed while a sandbox was made or found, which is removed."""
        if sandbox is not None and self._closed and not self._keeps:
            await self._engine.remove(sandbox.id, STOPPING)
            self._refuse_closed()

    def _leave(self, owner: Owner, place: Place) -> None:
        """Count one user less; with the last one, an empty place goes."""
        place.users -= 1
        place.used_s = self._clock()
        if place.sandbox is not None and not place.sandbox.alive:
            spec = place.sandbox.spec
            log.warning("sandbox %s (tenant %s, thread %r) was lost", place.sandbox.id, spec.tenant, spec.thread)
            # At once, not at the next call: what its calls had started runs until the container is gone.
            place.leaving = self._places.begin_removal(owner, place.sandbox.id)
            place.sandbox = None
        gone = not place.occupied and (place.leaving is None or place.leaving.done())
        if place.users == 0 and (gone or (self._closed and not self._keeps)):
            self._places.forget(owner, place)

    def _fresh(self, place: Place, sandbox: Sandbox, spec: SandboxSpec) -> bool:
        shared = place.users > 1
        # A sandbox that answered this recently is not asked again; one that was idle for longer is.
        return sandbox.alive and _fits(sandbox, spec) and (shared or self._clock() - place.used_s < 1.0)

    async def _borrowed(self, place: Place, spec: SandboxSpec) -> Sandbox:
        """Borrow the place's sandbox, made or replaced as needed; the caller has the place's lock."""
        # How often the sandbox is created or found again when another process removes it in that moment.
        for _ in range(3):
            sandbox = await self._usable(place, spec)
            if sandbox.overdue_s is not None and sandbox.busy:
                continue  # another process has calls in it, or it has just become overdue: the next try waits
            if sandbox.borrow():
                return sandbox
            # Another process removed it meanwhile, and nothing had begun in it.
        raise SandboxUnavailable("other gateways keep removing this thread's sandbox: try again")

    async def _usable(self, place: Place, spec: SandboxSpec) -> Sandbox:
        """Return the place's sandbox, made or replaced as needed; the caller has the place's lock."""
        overdue = place.sandbox is not None and place.sandbox.overdue_s is not None
        if place.sandbox is not None and overdue:
            await self._until_unused(place.sandbox)
        if place.leaving is not None:
            await asyncio.wait({place.leaving})
            place.leaving = None
        sandbox = place.sandbox
        if sandbox is not None:
            shared, fits = place.users > 1, _fits(sandbox, spec)
            if sandbox.alive and not overdue and (shared or (fits and await sandbox.ping())):
                return sandbox
            place.sandbox = None
            if overdue and sandbox.alive and self._limits.keeps_stopped:
                # Not removed: the next sandbox's first command reports which processes ended.
                await self._engine.stop_idle(sandbox.id)
            else:
                # For a lost one the engine knows a better reason.
                await self._engine.remove(sandbox.id, NO_ANSWER if fits and not overdue else MADE_OTHERWISE)
        try:
            made = await self._creator.create(spec)
        except (EngineUnavailable, SandboxUnavailable) as error:
            log.warning("no sandbox for thread %r of tenant %s: %s", spec.thread, spec.tenant, error)
            raise
        place.left = None
        await self._kept_open(made)
        self._refuse_closed()
        place.sandbox = made
        return made

    async def _until_unused(self, sandbox: Sandbox) -> None:
        """Wait for the calls in a sandbox past its lifetime; end those that go on for GRACE_S."""
        while sandbox.alive and sandbox.busy:
            if (sandbox.overdue_s or 0.0) >= GRACE_S:
                await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)
                return
            await asyncio.sleep(_LOOK_S)

    async def _living(self, place: Place, spec: SandboxSpec) -> Sandbox | None:
        """Return the place's sandbox if it lives; the caller has the place's lock."""
        sandbox = place.sandbox
        if sandbox is None:
            if place.leaving is not None:
                await asyncio.wait({place.leaving})
            found = await self._engine.find(spec)
            place.left = None
            await self._kept_open(found)
            place.sandbox = found
            return found
        if place.users == 1:
            await sandbox.ping()  # marks a lost one; one that is only slow still has its processes
        return sandbox if sandbox.alive else None


def _fits(sandbox: Sandbox, spec: SandboxSpec) -> bool:
    return sandbox.spec == spec and not sandbox.outdated
