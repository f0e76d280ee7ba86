"""MemoryEngine: sandboxes without Docker, each a daemon that is a plain process. IT CONTAINS NOTHING.

Every command runs as a program of this machine, with this process' user, files and network. It is for tests, examples,
and services that are developed against a gateway where there is no Docker; never for code that nobody has reviewed. The
configuration takes it by name only (`sandbox.engine: memory`), and the gateway then listens on loopback alone.

    engine = MemoryEngine()                      # everything in a temporary directory that close() removes
    engine = MemoryEngine(root=directory)        # workspaces stay there, for the next process

What it keeps of the Engine protocol is all but the walls: tests/conformance runs on both. What is different:

    - image, runtime and limits are noted and not enforced, and there is no posture that says anything;
    - paths of calls are the sandbox's: /workspace and /tmp are directories of its own, and nothing else is there. In a
      command they are this machine's. It has the workspace as its directory and should name files relative to that;
      $TMPDIR is what calls know as /tmp;
    - one that is stopped for being idle has its files, its id and nothing else to come back to;
    - sandboxes end with this process, however it ends (local_daemon.py): close() keeps none;
    - one process at a time has a root, and locks it.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sandbox.engines.local.local_workspace import remove_directory
from sandbox.engines.local.local_workspaces import LocalWorkspaces
from sandbox.engines.local.memory_sandbox import MemoryPlace, MemorySandbox, MemorySpare, made_alike
from sandbox.engines.pooled_sandbox import SpareKind, spare_id
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.owner import Owner, digest, owner_by_name, owner_of
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import (
    ASKED,
    ASKED_AGAIN,
    CALLS_LOST,
    DELETED,
    MADE_OTHERWISE,
    OVERDUE,
    ROOM,
    STOPPING,
    TOO_LONG,
    UNUSED,
    State,
    Tell,
    Transition,
    nobody,
)
from sandbox.usage import Usage

_RESTORED = "its files were replaced"
_Saved = TypeVar("_Saved")


@dataclass(frozen=True)
class _Stopped:
    """A sandbox that was stopped for being idle: what its next start has to know."""

    id: str
    spec: SandboxSpec
    created_s: float
    processes: int
    since_s: float

    def shown(self) -> ListedSandbox:
        """Return it as lists show it."""
        spec = self.spec
        made = (self.id, spec.thread, spec.image, spec.runtime, self.created_s)
        return ListedSandbox(*made, "idle_stopped", self.since_s)


class MemoryEngine:
    """Satisfies sandbox.engine.Engine. `tell` hears what becomes of sandboxes. `clock` is in seconds since 1970.

    One that was made `lifetime_s` ago is replaced when nobody uses it; its keeper sees to that. None sets no end.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        lifetime_s: float | None = None,
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
        tell: Tell = nobody,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._temporary = root is None
        self._root = Path(tempfile.mkdtemp(prefix="airlock-memory-")) if root is None else root
        self._workspaces = LocalWorkspaces(self._root)
        self._lifetime_s = lifetime_s
        self._new_suffix = new_suffix
        self._tell = tell
        self._clock = clock
        self._places: dict[Owner, MemoryPlace] = {}  # the one that was used longest ago comes first
        self._stopped: dict[Owner, _Stopped] = {}  # the one that is stopped for longest comes first
        # What a new sandbox of a thread has to wait for: the end of the one before, or its files being replaced.
        self._ending: dict[Owner, asyncio.Task[None]] = {}
        self._preparing = asyncio.Lock()
        self._closed = False

    async def id(self) -> str:
        """Return what tells this engine from others: made once for a root, and kept in it."""
        return self._workspaces.id()

    async def ping(self) -> None:
        """Return: this process answers if anything does."""

    async def prepare(self) -> None:
        """Make the root and lock it, which waits for the end of what a process that was killed left in it."""
        async with self._preparing:
            if not self._closed:
                await self._workspaces.prepare()
        if self._closed:
            raise SandboxUnavailable("the in-memory engine is closed; nothing can be made by it any more")

    async def reconcile(self) -> Sequence[LeftSandbox]:
        """Return nothing: no sandbox outlives its process."""
        await self.prepare()
        return []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of a tenant and thread: the one that lives, or a new one over the same files."""
        return await self._create(spec)

    async def make_spare(self, kind: SpareKind) -> MemorySpare:
        """Return what costs nothing here: the id that a sandbox will have."""
        await self.prepare()
        return MemorySpare(spare_id(self._new_suffix()), kind)

    async def claim(self, spare: MemorySpare, spec: SandboxSpec) -> Sandbox | None:
        """Return a spare as the sandbox of a thread that has neither a sandbox nor files; None for any other thread."""
        mine = owner_of(spec)
        if mine in {*self._places, *self._stopped, *self._ending, *self._owners_of(spec.tenant)}:
            return None
        return await self._create(spec, spare.id)

    async def discard(self, spare: MemorySpare) -> None:
        """Forget a spare."""

    async def _create(self, spec: SandboxSpec, spare: str = "") -> Sandbox:
        await self.prepare()
        mine = owner_of(spec)
        while True:
            place = self._places.get(mine)
            if place is not None and not self._keeps(place, spec):
                self._begin_to_end(place, "it was lost" if not place.alive else MADE_OTHERWISE)
            elif place is not None:
                await asyncio.shield(place.starting)
                return self._lent(place, spec)
            if mine not in self._ending:
                break
            await asyncio.wait({self._ending[mine]})  # what runs still may write to the same files
        # From here on nothing waits, so nobody makes another meanwhile and a caller that gives up leaves nothing.
        stopped = self._stopped.pop(mine, None)
        ended_processes = 0 if stopped is None else stopped.processes
        if stopped is not None and made_alike(stopped.spec, spec) and not self._is_old(stopped.created_s):
            sandbox_id, created_s = stopped.id, stopped.created_s
        else:
            if stopped is not None:
                self._told(stopped.spec, stopped.id, "removed", MADE_OTHERWISE)
            stopped = None
            sandbox_id = spare or f"{digest(spec.tenant, spec.thread)[:12]}-{self._new_suffix()}"
            created_s = self._clock()
            self._told(spec, sandbox_id, "creating", f"image {spec.image}, runtime {spec.runtime}")
        try:
            directories = self._workspaces.make(mine, sandbox_id)
        except SandboxError as error:
            self._told(spec, sandbox_id, "failed" if stopped is None else "removed", str(error))
            raise
        place = self._places[mine] = MemoryPlace(
            sandbox_id,
            spec,
            *directories,
            lock=self._workspaces.lock,
            created_s=created_s,
            used_s=self._clock(),
            ended_processes=ended_processes,
        )
        place.starting.add_done_callback(lambda _: self._note_start(place, again=stopped is not None))
        await asyncio.shield(place.starting)
        return self._lent(place, spec)

    def _note_start(self, place: MemoryPlace, *, again: bool) -> None:
        """Report that a sandbox came up, or end one that did not, whether or not its creator waits for it."""
        error = None if place.starting.cancelled() else place.starting.exception()
        if self._places.get(place.owner) is not place:
            return  # it was ended before
        if error is None:
            self._told(place.spec, place.id, "running", ASKED_AGAIN if again else "it came up")
        else:
            self._told(place.spec, place.id, "removed" if again else "failed", str(error))
            self._begin_to_end(place)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        """Return the living sandbox of a tenant and thread, however it was made."""
        place = self._places.get(owner_of(spec))
        return None if place is None or not place.alive else self._lent(place, spec)

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether a tenant and thread have a sandbox."""
        return owner_of(spec) in self._places

    def stopped(self, spec: SandboxSpec) -> str | None:
        """Return the id of what is stopped of a tenant and thread."""
        found = self._stopped.get(owner_of(spec))
        return None if found is None else found.id

    def stopped_count(self) -> int:
        """Return how many sandboxes are stopped."""
        return len(self._stopped)

    def owners(self) -> Sequence[Owner]:
        """Return whose sandboxes there are, the longest unused first."""
        return list(self._places)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        """Return a tenant's sandboxes that live, are stopped, or are dead and not removed yet, by id."""
        mine = digest(tenant)
        there = [place.shown() for (theirs, _), place in self._places.items() if theirs == mine]
        there += [stopped.shown() for (theirs, _), stopped in self._stopped.items() if theirs == mine]
        return sorted(there, key=lambda sandbox: sandbox.id)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        """Return that nobody knows: its programs are in no control group of their own. None where it is gone."""
        return None if self._find(sandbox.id) is None else Usage()

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox unless it is in use; what is dead is removed."""
        mine = owner_by_name(tenant, thread)
        place = self._places.get(mine)
        if place is not None and not await self._stop(place, ASKED):
            if self._places.get(mine) is place:
                raise SandboxBusy("calls are under way in this sandbox; stop it when they are over, or cancel them")
            return replace(place.shown(), state="removed")
        stopped = self._stopped.get(mine)
        return None if stopped is None else stopped.shown()

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Remove a thread's sandbox, running, stopped or dead, unless it is in use."""
        mine = owner_by_name(tenant, thread)
        place, stopped = self._places.get(mine), self._stopped.get(mine)
        if place is not None and place.users:
            raise SandboxBusy("calls are under way in this sandbox; remove it when they are over, or cancel them")
        if place is not None:
            was = place.shown()
            await self._end(place, ASKED)
            return was
        if stopped is not None:
            self._forget_stopped(mine, ASKED)
            return stopped.shown()
        return None

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        """Remove a thread's sandbox if calls are under way in it; return whether there were any.

        With `overdue` only one that is past its lifetime.
        """
        place = self._places.get(owner_by_name(tenant, thread))
        if place is None or not place.users or (overdue and not self._is_old(place.created_s)):
            return False
        await self._end(place, OVERDUE if overdue else CALLS_LOST)
        return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        """Remove or stop the sandbox that was used longest ago and is not in use."""
        for place in [place for place in self._places.values() if tenant in (None, place.owner[0])]:
            if place.users or self._places.get(place.owner) is not place:
                continue
            if not stop:
                await self._end(place, ROOM)
                return True
            if await self._stop(place, ROOM) or self._places.get(place.owner) is not place:
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        """End what runs in a sandbox that nobody uses; create() starts it again. None is no error."""
        place = self._find(sandbox_id)
        return place is not None and await self._stop(place, "nobody used it")

    async def _stop(self, place: MemoryPlace, reason: str) -> bool:
        """Stop a sandbox that nobody uses, or remove a dead one; return whether it is stopped."""
        if place.users:
            return False
        try:
            processes = await place.running()
        except SandboxError:
            processes = 0
        if self._places.get(place.owner) is not place or place.users:
            return False  # somebody came in between
        if not place.alive:
            await self._end(place, f"{reason}, and it could not be stopped")
            return False
        unsaid = place.ended_processes + processes
        self._stopped[place.owner] = _Stopped(place.id, place.spec, place.created_s, unsaid, self._clock())
        ended = f"; its background processes ({processes}) ended" if processes else ""
        self._told(place.spec, place.id, "idle_stopped", f"{reason}{ended}")
        await self._end(place)
        return True

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        """Remove what is stopped for `timeout_s`, or past `limit`; return how many sandboxes went."""
        latest_s = self._clock() - timeout_s
        surplus = [mine for mine, stopped in self._stopped.items() if stopped.since_s <= latest_s]
        kept = [mine for mine in self._stopped if mine not in surplus]
        while len(kept) > limit:
            (most, _), *_ = Counter(tenant for tenant, _ in kept).most_common(1)
            surplus.append(next(mine for mine in kept if mine[0] == most))
            kept.remove(surplus[-1])
        for mine in surplus:
            self._forget_stopped(mine, TOO_LONG)
        return len(surplus)

    async def remove(self, sandbox_id: str, reason: str = UNUSED) -> None:
        """Remove a sandbox, running or stopped, not its workspace. None is no error."""
        for mine, stopped in self._stopped.items():
            if stopped.id == sandbox_id:
                self._forget_stopped(mine, reason)
                return
        place = self._find(sandbox_id)
        if place is not None:
            await self._end(place, reason if place.alive else "it was lost")

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Saved]) -> _Saved | None:
        """Return what `take`, in a thread, makes of a thread's files; None where there are none."""
        mine = owner_of(spec)
        with self._workspaces.alone(mine):
            return await self._workspaces.save(mine, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Have what `give` yields in the place of a thread's files; the old ones stay until all of it is there."""
        del size_bytes  # it keeps no reserve of the machine's disk
        await self.prepare()
        mine = owner_of(spec)
        with self._workspaces.alone(mine):
            while True:
                place = self._places.get(mine)
                if place is not None and place.users:
                    raise SandboxBusy("calls are under way in this thread; wait until they are over, or cancel them")
                if place is not None:
                    self._begin_to_end(place, _RESTORED)
                if mine not in self._ending:
                    break
                await asyncio.wait({self._ending[mine]})
            self._forget_stopped(mine, _RESTORED)
            task = asyncio.get_running_loop().create_task(self._workspaces.replace(mine, give))
            self._hold(mine, task)
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good and return whether there were any; its sandbox must be gone."""
        mine = owner_by_name(tenant, thread)
        if mine in self._ending:
            await asyncio.wait({self._ending[mine]})
        if mine in self._places or mine in self._stopped:
            raise SandboxUnavailable("the files of this thread are in use by its sandbox; remove that first")
        return await self._workspaces.delete(mine)

    async def remove_all_of(self, tenant: str) -> int:
        """Remove a tenant's sandboxes, busy ones too, and its files; return how many threads had some."""
        for mine in [mine for mine in self._stopped if mine[0] == digest(tenant)]:
            self._forget_stopped(mine, DELETED)
        places = [place for place in self._places.values() if place.owner[0] == digest(tenant)]
        await self._end_all(places, DELETED)
        removed = 0
        for mine in self._owners_of(tenant):
            removed += await self._workspaces.delete(mine)
        return removed

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        """Return how many workspaces and sandboxes of a tenant there are, by the names that Docker has for them."""
        mine = digest(tenant)
        containers = sum(theirs == mine for theirs, _ in {*self._places, *self._ending, *self._stopped})
        return {"volumes": len(self._owners_of(tenant)), "containers": containers}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread for good; of those with a sandbox this is refused, when others are gone."""
        for mine in list(self._stopped):
            self._forget_stopped(mine, STOPPING)
        busy = {*self._places, *self._ending}
        for mine in self._workspaces.owners():
            if mine not in busy:
                await self._workspaces.delete(mine)
        if busy:
            raise SandboxUnavailable(f"the files of {len(busy)} threads are in use by their sandboxes")

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox that there is runs, by its id."""
        resting = {stopped.id: False for stopped in self._stopped.values()}
        return {**{place.id: place.alive for place in self._places.values()}, **resting}

    async def close(self, *, keep_sandboxes: bool = False) -> None:  # noqa: ARG002 - they end with this process
        """End every sandbox, busy ones too; workspaces stay in a root that was given. Closing again is no error."""
        if self._closed:
            return
        self._closed = True
        for mine in list(self._stopped):
            self._forget_stopped(mine, STOPPING)
        await self._end_all(list(self._places.values()), STOPPING)
        async with self._preparing:
            self._workspaces.close()
        if self._temporary:
            await asyncio.to_thread(remove_directory, self._root)

    def _keeps(self, place: MemoryPlace, spec: SandboxSpec) -> bool:
        fits = made_alike(place.spec, spec) and not self._is_old(place.created_s)
        return place.alive and (fits or place.users > 0)

    def _is_old(self, created_s: float) -> bool:
        return self._overdue_s(created_s) is not None

    def _overdue_s(self, created_s: float) -> float | None:
        past_s = -1.0 if self._lifetime_s is None else self._clock() - (created_s + self._lifetime_s)
        return past_s if past_s >= 0 else None

    def _lent(self, place: MemoryPlace, spec: SandboxSpec) -> Sandbox:
        return MemorySandbox(place, spec, used=self._note_use, overdue_s=lambda: self._overdue_s(place.created_s))

    def _note_use(self, place: MemoryPlace) -> None:
        place.used_s = self._clock()
        if self._places.get(place.owner) is place:
            self._places[place.owner] = self._places.pop(place.owner)

    async def _end(self, place: MemoryPlace, reason: str = "") -> None:
        # A caller that gives up does not stop it.
        await asyncio.shield(self._begin_to_end(place, reason))

    async def _end_all(self, places: Sequence[MemoryPlace], reason: str) -> None:
        for place in places:
            self._begin_to_end(place, reason)
        while self._ending:
            await asyncio.wait(self._ending.values())

    def _begin_to_end(self, place: MemoryPlace, reason: str = "") -> asyncio.Task[None]:
        """End a sandbox in the background; a new one of its thread waits for it. Without a reason it is not removed."""
        if reason:
            self._told(place.spec, place.id, "removed", reason)
        del self._places[place.owner]
        task = place.end()
        self._hold(place.owner, task)
        return task

    def _hold(self, mine: Owner, task: asyncio.Task[None]) -> None:
        """Have a thread's next sandbox wait for something."""
        self._ending[mine] = task
        task.add_done_callback(lambda _: self._ending.pop(mine))

    def _forget_stopped(self, mine: Owner, reason: str) -> None:
        """Remove what is stopped of a thread, if anything is."""
        stopped = self._stopped.pop(mine, None)
        if stopped is not None:
            self._told(stopped.spec, stopped.id, "removed", reason)

    def _told(self, spec: SandboxSpec, sandbox_id: str, state: State, reason: str) -> None:
        self._tell(Transition(*owner_of(spec), sandbox_id, state, reason, spec.thread))

    def _find(self, sandbox_id: str) -> MemoryPlace | None:
        return next((place for place in self._places.values() if place.id == sandbox_id), None)

    def _owners_of(self, tenant: str) -> list[Owner]:
        return [mine for mine in self._workspaces.owners() if mine[0] == digest(tenant)]
