"""SandboxKeeper: lends each thread its one sandbox, making, replacing and removing them behind the callers' backs.

One sandbox per tenant and thread. It is made once however many calls ask at the same time, replaced with the same
workspace when it died, stopped when idle and started again by the next call, and one that is idle, of the tenant with
the most, makes room when too many live. One that is stopped for long is removed. Stopping and removal happen in the
background: no caller waits for them, but for the one who replaces a dead sandbox, whose processes may still write.

In one that is past its lifetime no call begins: it waits for those that are under way, of any process, and has a new
one then. Those that go on for GRACE_S after the lifetime are ended with the sandbox. So a sandbox runs for its
lifetime, GRACE_S, and the time between two looks at most.

What an earlier process left alive counts as live and idle from the start, until its thread asks for it. What other
processes of the gateway have counts as well, as it was a moment ago: a limit may be passed by as many as are made at
the same time. Of a thread's sandbox that several processes keep, the last to find it idle removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sandbox.engines.engine import Lending
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.owner import Owner, owner_by_name, owner_of
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import MADE_OTHERWISE, NO_ANSWER, STOPPING, UNUSED, State

log = logging.getLogger(__name__)

# A sandbox that answered this recently is taken at its word; one that was left alone longer is asked first.
_TRUST_S = 1.0
_SWEEPS_PER_TIMEOUT = 4
# A lifetime may be much shorter than the time that a sandbox may be idle.
_SWEEP_LATEST_S = 60.0
# Twice what a policy grants a call that says nothing of it (limits.timeout_s).
GRACE_S = 600.0
# How often a sandbox past its lifetime is looked at by who waits for its calls: those of other processes tell nobody.
_LOOK_S = 0.05
# How often a sandbox is looked for again that another process removed in that very moment.
_TRIES = 3


class _Place:
    """Where the sandbox of one tenant and thread is: being made, lent out `users` times, or idle since `used_s`."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.sandbox: Sandbox | None = None
        # The id of what an earlier process left here, until the engine has taken it over or replaced it.
        self.left: str | None = None
        self.users = 0
        self.used_s = 0.0
        # What its owner's policy says of how long it may be idle.
        self.idle_timeout_s: float | None = None
        self.leaving: asyncio.Task[None] | None = None


class SandboxKeeper:
    """Keeps the sandboxes of one gateway, each idle for `idle_timeout_s` at most.

    An idle one is stopped, and removed when it was stopped for `stopped_timeout_s`; 0 removes it at once. `max_live` is
    how many live, `max_live_per_tenant` how many of one tenant, and `max_stopped` how many are stopped: of all gateways
    of the engine.
    """

    def __init__(
        self,
        engine: Lending,
        *,
        idle_timeout_s: float,
        max_live: int,
        max_live_per_tenant: int,
        stopped_timeout_s: float,
        max_stopped: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._idle_timeout_s = idle_timeout_s
        self._max_live = max_live
        self._max_live_per_tenant = max_live_per_tenant
        self._stopped_timeout_s = stopped_timeout_s
        self._max_stopped = max_stopped
        # The shortest time that any owner's sandbox may be idle, and what tells of a shorter one.
        self._shortest_s = idle_timeout_s
        self._shorter = asyncio.Event()
        self._clock = clock
        # By owner_of(): digests, for what an earlier process left is known by no other name.
        self._places: dict[Owner, _Place] = {}
        # Whose removal is under way: not counted, though the engine still has it.
        self._leaving: dict[Owner, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False
        self._keeps = False

    @property
    def live(self) -> int:
        """How many sandboxes this process has or makes."""
        return len(self._places)

    def states(self) -> Mapping[State, int]:
        """Return how many sandboxes this process is about to have, and has, and how many of all are stopped."""
        here = [place.sandbox is not None or place.left is not None for place in list(self._places.values())]
        return {
            "creating": here.count(False),
            "running": here.count(True),
            "idle_stopped": self._engine.stopped_count(),
        }

    def living(self) -> list[Sandbox]:
        """Return the sandboxes that this process has at hand, for looks as at_hand() has them."""
        found = [place.sandbox for place in self._places.values()]
        return [sandbox for sandbox in found if sandbox is not None and sandbox.alive]

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox as Engine.stop() does; where none is to stay stopped it is removed."""
        if self._stopped_timeout_s <= 0:
            was = await self._engine.remove_of(tenant, thread)
            return None if was is None else replace(was, state="removed")
        stopped = await self._engine.stop(tenant, thread)
        self._begin(self._trim_behind())
        return stopped

    def ends_s(self, one: ListedSandbox, spec: SandboxSpec) -> float | None:
        """Return when an idle sandbox is stopped, or a stopped one removed, if nobody asks for it.

        In seconds since 1970, and a moment early: whoever looks after them looks now and then. None for never.
        """
        if one.since_s is None:
            return None
        if one.state == "idle_stopped":
            return one.since_s + self._stopped_timeout_s
        return one.since_s + (self._idle_timeout_s if spec.idle_timeout_s is None else spec.idle_timeout_s)

    async def adopt(self, left: Iterable[LeftSandbox]) -> None:
        """Keep what an earlier process left, as idle; what is past the limits, counted from the first, is removed."""
        now_s = self._clock()
        surplus = []
        for sandbox in left:
            if (sandbox.tenant, sandbox.thread) in self._places:
                continue
            of_tenant = sum(tenant == sandbox.tenant for tenant, _ in self._places)
            if len(self._places) >= self._max_live or of_tenant >= self._max_live_per_tenant:
                surplus.append(sandbox)
                continue
            place = self._places[sandbox.tenant, sandbox.thread] = _Place()
            place.left = sandbox.id
            place.used_s = now_s
        self._begin_sweeping()
        await asyncio.gather(*(self._remove((one.tenant, one.thread), one.id) for one in surplus))

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Lend the sandbox of the spec's tenant and thread; raises SandboxError when there can be none.

        Calls of one thread share it. A sandbox made for another spec is replaced once nobody uses it.
        """
        if self._closed:
            raise SandboxUnavailable("the gateway is shutting down: try again when it is back")
        key = owner_of(spec)
        if key not in self._places and not self._engine.has(spec):
            await self._make_room(key[0])
        place = self._places.setdefault(key, _Place())
        self._set_idle_timeout(place, spec)
        self._begin_sweeping()
        place.users += 1
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
            self._leave(key, place)

    @asynccontextmanager
    async def acquire_existing(self, spec: SandboxSpec) -> AsyncIterator[Sandbox | None]:
        """Lend the sandbox of the spec's tenant and thread, or None where none lives: whoever only looks makes none.

        One made for another spec is lent as it is, and stays.
        """
        if self._closed:
            raise SandboxUnavailable("the gateway is shutting down: try again when it is back")
        key = owner_of(spec)
        if key not in self._places and not self._engine.has(spec):
            yield None
            return
        place = self._places.setdefault(key, _Place())
        place.users += 1
        try:
            sandbox = place.sandbox
            # One that is busy lives, past its lifetime as well: who looks does not wait with those who want a new one.
            lent = sandbox is not None and (
                (sandbox.alive and sandbox.busy) or self._fresh(place, sandbox, sandbox.spec)
            )
            if sandbox is None or not (lent and sandbox.borrow()):
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
            self._leave(key, place)

    def at_hand(self, tenant: str, thread: str) -> Sandbox | None:
        """Return a thread's sandbox as far as this process has it, for a look that is no use and keeps it from nothing.

        It may be removed in the midst of the look, which is DaemonLost then.
        """
        place = self._places.get(owner_by_name(tenant, thread))
        return None if place is None or place.sandbox is None or not place.sandbox.alive else place.sandbox

    def users(self, tenant: str, thread: str) -> int:
        """Return how many calls of this process are under way in a thread's sandbox."""
        place = self._places.get(owner_by_name(tenant, thread))
        return 0 if place is None else place.users

    def _leave(self, key: Owner, place: _Place) -> None:
        """Count a user of a place out; with the last one, a place that has nothing in it goes."""
        place.users -= 1
        place.used_s = self._clock()
        if place.sandbox is not None and not place.sandbox.alive:
            spec = place.sandbox.spec
            log.warning("sandbox %s (tenant %s, thread %r) was lost", place.sandbox.id, spec.tenant, spec.thread)
            # At once, not at the next call: what its calls had started runs until the container is gone.
            place.leaving = self._begin(self._remove(key, place.sandbox.id))
            place.sandbox = None
        here = place.sandbox is not None or place.left is not None
        gone = not here and (place.leaving is None or place.leaving.done())
        if place.users == 0 and (gone or (self._closed and not self._keeps)):
            self._forget(key, place)

    def sweep(self) -> None:
        """Begin to stop, or to remove where nothing is stopped, what is idle for too long or past its lifetime."""
        now_s = self._clock()
        for key, place in list(self._places.items()):
            timeout_s = self._idle_timeout_s if place.idle_timeout_s is None else place.idle_timeout_s
            overdue_s = None if place.sandbox is None else place.sandbox.overdue_s
            if place.users == 0 and (now_s - place.used_s >= timeout_s or overdue_s is not None):
                self._forget(key, place, stop=True)
            elif place.sandbox is not None and overdue_s is not None and overdue_s >= GRACE_S:
                self._begin(self._end_overdue(place.sandbox))

    async def close(self, *, keep_sandboxes: bool = False, remove_workspaces: bool = False) -> None:
        """Remove every sandbox, busy ones too, and wait for it; with `remove_workspaces` all threads' files too.

        With `keep_sandboxes` those that are alive stay as they are, for the next process.
        """
        self._closed = True
        self._keeps = keep_sandboxes
        if self._sweeper is not None:
            self._sweeper.cancel()
        for key, place in list(self._places.items()):
            if not keep_sandboxes:
                self._forget(key, place)
        await self.settled()
        if remove_workspaces:
            try:
                await self._engine.remove_workspaces()
            except SandboxError as error:
                log.warning("workspaces could not be removed: %s", error)

    async def settled(self) -> None:
        """Wait for the removals in the background."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _fresh(self, place: _Place, sandbox: Sandbox, spec: SandboxSpec) -> bool:
        busy = place.users > 1
        fits = sandbox.spec == spec and not sandbox.outdated
        return sandbox.alive and fits and (busy or self._clock() - place.used_s < _TRUST_S)

    async def _borrowed(self, place: _Place, spec: SandboxSpec) -> Sandbox:
        """Borrow the place's sandbox, made or replaced as needed; the caller holds the lock."""
        for _ in range(_TRIES):
            sandbox = await self._usable(place, spec)
            if sandbox.overdue_s is not None and sandbox.busy:
                continue  # calls of another process are in it, or it has just become so old: the next try waits
            if sandbox.borrow():
                return sandbox
            # Another process removed it in between, and nothing had begun in it.
        raise SandboxUnavailable("other gateways keep removing this thread's sandbox: try again")

    async def _usable(self, place: _Place, spec: SandboxSpec) -> Sandbox:
        """Return the place's sandbox, made or replaced as needed; the caller holds the lock."""
        overdue = place.sandbox is not None and place.sandbox.overdue_s is not None
        if place.sandbox is not None and overdue:
            await self._until_unused(place.sandbox)
        if place.leaving is not None:
            await asyncio.wait({place.leaving})
            place.leaving = None
        sandbox = place.sandbox
        if sandbox is not None:
            others = place.users > 1
            fits = sandbox.spec == spec and not sandbox.outdated
            if sandbox.alive and not overdue and (others or (fits and await sandbox.ping())):
                return sandbox
            place.sandbox = None
            if overdue and sandbox.alive and self._stopped_timeout_s > 0:
                # Not removed: the next one's first command says what ended with it.
                await self._engine.stop_idle(sandbox.id)
            else:
                # One that is lost says so itself.
                await self._engine.remove(sandbox.id, NO_ANSWER if fits and not overdue else MADE_OTHERWISE)
        try:
            made = await self._engine.create(spec)
        except (EngineUnavailable, SandboxUnavailable) as error:
            log.warning("no sandbox for thread %r of tenant %s: %s", spec.thread, spec.tenant, error)
            raise
        place.left = None
        if self._closed:
            if not self._keeps:
                await self._engine.remove(made.id, STOPPING)
            raise SandboxUnavailable("the gateway is shutting down: try again when it is back")
        place.sandbox = made
        return made

    async def _until_unused(self, sandbox: Sandbox) -> None:
        """Wait for the calls in a sandbox past its lifetime; those that go on for too long are ended."""
        while sandbox.alive and sandbox.busy:
            if (sandbox.overdue_s or 0.0) >= GRACE_S:
                await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)
                return
            await asyncio.sleep(_LOOK_S)

    async def _end_overdue(self, sandbox: Sandbox) -> None:
        """End the calls in a sandbox that is for too long past its lifetime, behind everybody's back."""
        try:
            await self._engine.end_calls(sandbox.spec.tenant, sandbox.spec.thread, overdue=True)
        except SandboxError as error:
            log.warning("sandbox %s is past its lifetime, and a later look will end it: %s", sandbox.id, error)

    async def _living(self, place: _Place, spec: SandboxSpec) -> Sandbox | None:
        """Return the place's sandbox if it lives; the caller holds the lock."""
        sandbox = place.sandbox
        if sandbox is None:
            if place.leaving is not None:
                await asyncio.wait({place.leaving})
            found = await self._engine.find(spec)
            place.left = None
            if found is not None and self._closed and not self._keeps:
                await self._engine.remove(found.id, STOPPING)
                raise SandboxUnavailable("the gateway is shutting down: try again when it is back")
            place.sandbox = found
            return found
        if place.users == 1:
            await sandbox.ping()  # finds out whether it was lost; one that is only slow has its processes still
        return sandbox if sandbox.alive else None

    async def _make_room(self, tenant: str) -> None:
        """Let a tenant have one more: past its own limit one of its own goes, past that of all the one of who has most.

        Only idle ones go. Who asks counts with the one that it asks for, and loses where others have as many: nobody
        who has fewer than another loses to it what that one could spare.
        """
        others = {one for one in self._engine.owners() if one not in self._places and one not in self._leaving}
        held = Counter(theirs for theirs, _ in (*self._places, *others))
        held[tenant] += 1
        if held[tenant] > self._max_live_per_tenant:
            if not await self._spared(tenant, others):
                raise SandboxUnavailable(
                    f"all {self._max_live_per_tenant} sandboxes of this tenant are busy: try again later"
                )
        elif held.total() > self._max_live:
            for most in sorted(held, key=lambda one: (-held[one], one != tenant)):
                if await self._spared(most, others):
                    return
            raise SandboxUnavailable(
                f"all {self._max_live} sandboxes are busy: try again later, or raise sandbox.max_live"
            )

    async def _spared(self, tenant: str, others: Collection[Owner]) -> bool:
        """End a tenant's longest idle sandbox; return whether it had one. No caller waits for one of this process."""
        if self._forget_idle([key for key in self._places if key[0] == tenant]):
            return True
        elsewhere = any(theirs == tenant for theirs, _ in others)
        return elsewhere and await self._engine.remove_idle(tenant, stop=self._stopped_timeout_s > 0)

    def _forget_idle(self, keys: Iterable[Owner]) -> bool:
        """Forget the longest idle of some places; return whether there was one."""
        idle = [(self._places[key].used_s, key) for key in keys if self._places[key].users == 0]
        if idle:
            _, key = min(idle)
            self._forget(key, self._places[key], stop=True)
        return bool(idle)

    def _forget(self, key: Owner, place: _Place, *, stop: bool = False) -> None:
        """Have nothing to do with a place any more; what is in it is removed, or with `stop` stopped for being idle."""
        stop = stop and self._stopped_timeout_s > 0
        if self._places.get(key) is place:
            del self._places[key]
        if place.sandbox is not None:
            self._begin(self._remove(key, place.sandbox.id, stop=stop and place.sandbox.alive))
            place.sandbox = None
        if place.left is not None:
            self._begin(self._remove(key, place.left, stop=stop))
            place.left = None

    async def _remove(self, key: Owner, sandbox_id: str, *, stop: bool = False) -> None:
        self._leaving[key] = self._leaving.get(key, 0) + 1
        try:
            if not stop:
                await self._engine.remove(sandbox_id, STOPPING if self._closed else UNUSED)
            elif await self._engine.stop_idle(sandbox_id):
                await self._trim()
        except SandboxError as error:
            log.warning("sandbox %s could not be removed, a later look will: %s", sandbox_id, error)
        finally:
            self._leaving[key] -= 1
            if not self._leaving[key]:
                del self._leaving[key]

    async def _trim_behind(self) -> None:
        """Trim what is stopped, behind a caller's back."""
        try:
            await self._trim()
        except SandboxError as error:
            log.warning("what is stopped for too long was not removed: %s", error)

    async def _trim(self) -> None:
        await self._engine.trim_stopped(timeout_s=self._stopped_timeout_s, limit=self._max_stopped)

    def _set_idle_timeout(self, place: _Place, spec: SandboxSpec) -> None:
        place.idle_timeout_s = spec.idle_timeout_s
        if spec.idle_timeout_s is not None and spec.idle_timeout_s < self._shortest_s:
            self._shortest_s = spec.idle_timeout_s
            self._shorter.set()

    def _begin_sweeping(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_forever())

    async def _sweep_forever(self) -> None:
        look_s = self._idle_timeout_s / _SWEEPS_PER_TIMEOUT
        looked_s = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._shortest_s / _SWEEPS_PER_TIMEOUT, _SWEEP_LATEST_S)):
                    await self._shorter.wait()
            self._shorter.clear()
            try:
                self.sweep()
                if self._clock() - looked_s < 0.9 * look_s:  # a timer may be a moment early
                    continue
                looked_s = self._clock()
                # What a process left that died: nobody may start in its place.
                await self.adopt(await self._engine.reconcile())
                await self._trim()
            except SandboxError as error:
                log.warning("what other gateways left was not looked for: %s", error)
            except Exception:  # a full disk, say: the next look may go well
                log.exception("sandboxes were not looked after")

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
