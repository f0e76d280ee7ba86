"""MemoryEngine: sandboxes without Docker, each a daemon that is a plain process. IT CONTAINS NOTHING.

Every command runs as a program of this machine, with this process' user, files and network. It is for tests, examples
and development against a gateway without Docker; never run unreviewed code in it. The configuration selects it by name
only (`sandbox.engine: memory`), and the gateway then listens on loopback alone.

    engine = MemoryEngine()                      # everything in a temporary directory that close() removes
    engine = MemoryEngine(root=directory)        # workspaces stay there, for the next process

It keeps the Engine protocol except for isolation: tests/conformance runs on both engines. The differences:

    - image, runtime and limits are recorded and not enforced, and the posture has only Landlock: file rules hold;
    - file calls see /workspace and /tmp, which are directories of the sandbox, and nothing else. Commands see this
      machine's paths: they run in the workspace and should use relative names; $TMPDIR is the /tmp of file calls;
    - a sandbox that was stopped for being idle keeps its files and its id only;
    - sandboxes end with this process, however it ends (local_daemon.py): close() keeps none;
    - one process at a time uses a root, and locks it.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sandbox import transition
from sandbox.engines.engine import surplus
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.local.local_workspaces import LocalWorkspaces, remove_directory
from sandbox.engines.local.memory_sandbox import MemoryPooled, MemorySandbox, RunningSandbox, StoppedSandbox, made_alike
from sandbox.engines.pooled_sandbox import PoolKind, pooled_id
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.sandbox import LeftSandbox, ListedSandbox, Owner, Sandbox, SandboxSpec, digest, owner_by_name, owner_of
from sandbox.transition import OnTransition, State, Transition, ignored
from sandbox.usage import Usage

_RESTORED = "its files were replaced"
_Saved = TypeVar("_Saved")


class MemoryEngine:  # large: implements the engine protocol
    """Satisfies sandbox.engine.Engine. `on_transition` receives each transition. `clock` is in seconds since 1970.

    A sandbox older than `lifetime_s` is replaced once it is unused; None sets no limit.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        lifetime_s: float | None = None,
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
        on_transition: OnTransition = ignored,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._temporary = root is None
        self._root = Path(tempfile.mkdtemp(prefix="airlock-memory-")) if root is None else root
        self._workspaces = LocalWorkspaces(self._root)
        self._lifetime_s = lifetime_s
        self._new_suffix = new_suffix
        self._on_transition = on_transition
        self._clock = clock
        self._running: dict[Owner, RunningSandbox] = {}  # least recently used first
        self._stopped: dict[Owner, StoppedSandbox] = {}  # longest stopped first
        # What the next sandbox of a thread waits for: the end of its predecessor, or the replacement of its files.
        self._ending: dict[Owner, asyncio.Task[None]] = {}
        self._preparing = asyncio.Lock()
        self._closed = False

    async def id(self) -> str:
        return self._workspaces.id()

    async def ping(self) -> None: ...

    async def prepare(self) -> None:
        """Create and lock the root, after what a killed process left in it has ended."""
        async with self._preparing:
            if not self._closed:
                await self._workspaces.prepare()
        if self._closed:
            raise SandboxUnavailable("the in-memory engine is closed and creates no more sandboxes")

    async def reconcile(self) -> Sequence[LeftSandbox]:
        await self.prepare()
        return []  # no sandbox outlives its process

    async def make_pooled(self, kind: PoolKind) -> MemoryPooled:
        await self.prepare()
        return MemoryPooled(pooled_id(self._new_suffix()), kind)

    async def claim(self, pooled: MemoryPooled, spec: SandboxSpec) -> Sandbox | None:
        taken = {*self._running, *self._stopped, *self._ending, *self._workspaces.owners(spec.tenant)}
        return None if owner_of(spec) in taken else await self.create(spec, pooled.id)

    async def discard(self, pooled: MemoryPooled) -> None: ...

    async def create(self, spec: SandboxSpec, pooled: str = "") -> Sandbox:
        await self.prepare()
        owner = owner_of(spec)
        while True:
            running = self._running.get(owner)
            if running is not None and not self._is_usable(running, spec):
                self._begin_to_end(running, transition.MADE_OTHERWISE if running.alive else "lost")
            elif running is not None:
                await asyncio.shield(running.starting)
                return self._handle(running, spec)
            if owner not in self._ending:
                break
            await asyncio.wait({self._ending[owner]})  # what still runs may write to the same files
        running = self._start(spec, pooled)
        await asyncio.shield(running.starting)
        return self._handle(running, spec)

    def _start(self, spec: SandboxSpec, pooled: str) -> RunningSandbox:
        # Awaits nothing, so no second sandbox is made meanwhile and a caller that gives up leaves nothing behind.
        owner = owner_of(spec)
        stopped = self._stopped.get(owner)
        ended_processes = 0 if stopped is None else stopped.processes
        again = stopped is not None and made_alike(stopped.spec, spec) and self._overdue_s(stopped.created_s) is None
        if stopped is not None and again:
            sandbox_id, created_s = stopped.id, stopped.created_s
            del self._stopped[owner]
        else:
            self._remove_stopped([owner], transition.MADE_OTHERWISE)
            sandbox_id = pooled or f"{digest(spec.tenant, spec.thread)[:12]}-{self._new_suffix()}"
            created_s = self._clock()
            self._report(spec, sandbox_id, "creating", f"image {spec.image}, runtime {spec.runtime}")
        try:
            directories = self._workspaces.make(owner, sandbox_id)
        except SandboxError as error:
            self._report(spec, sandbox_id, "removed" if again else "failed", str(error))
            raise
        process = LocalProcess(*directories, lock=self._workspaces.lock)
        running = RunningSandbox(sandbox_id, spec, process, created_s, self._clock(), ended_processes)
        self._running[owner] = running
        running.starting.add_done_callback(lambda _: self._note_start(running, again=again))
        return running

    def _note_start(self, running: RunningSandbox, *, again: bool) -> None:
        """Report that a sandbox came up, or end one that did not, whether or not its creator still waits."""
        error = None if running.starting.cancelled() else running.starting.exception()
        if self._running.get(running.owner) is not running:
            return  # it was ended before
        if error is None:
            self._report(running.spec, running.id, "running", transition.STARTED_AGAIN if again else "started")
        else:
            self._report(running.spec, running.id, "removed" if again else "failed", str(error))
            self._begin_to_end(running)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        running = self._running.get(owner_of(spec))
        return None if running is None or not running.alive else self._handle(running, spec)

    def has(self, spec: SandboxSpec) -> bool:
        return owner_of(spec) in self._running

    def stopped(self, spec: SandboxSpec) -> str | None:
        found = self._stopped.get(owner_of(spec))
        return None if found is None else found.id

    def stopped_count(self) -> int:
        return len(self._stopped)

    def owners(self) -> Sequence[Owner]:
        return list(self._running)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        theirs = digest(tenant)
        found = [running.listed() for owner, running in self._running.items() if owner[0] == theirs]
        found += [stopped.listed() for owner, stopped in self._stopped.items() if owner[0] == theirs]
        return sorted(found, key=lambda sandbox: sandbox.id)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        return None if self._find(sandbox.id) is None else Usage()  # nothing is known without a cgroup

    async def owned(self) -> Mapping[str, bool]:
        stopped = {sandbox.id: False for sandbox in self._stopped.values()}
        return {**{running.id: running.alive for running in self._running.values()}, **stopped}

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running = self._running.get(owner)
        if running is not None and not await self._stop(running, transition.ASKED):
            if self._running.get(owner) is running:
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            return replace(running.listed(), state="removed")
        stopped = self._stopped.get(owner)
        return None if stopped is None else stopped.listed()

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running, stopped = self._running.get(owner), self._stopped.get(owner)
        if running is not None and running.users:
            raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
        self._remove_stopped([owner], transition.ASKED)
        if running is None:
            return None if stopped is None else stopped.listed()
        listed = running.listed()
        await self._end(running, transition.ASKED)
        return listed

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        running = self._running.get(owner_by_name(tenant, thread))
        if running is None or not running.users or (overdue and self._overdue_s(running.created_s) is None):
            return False
        await self._end(running, transition.OVERDUE if overdue else transition.CALLS_LOST)
        return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        for running in [one for one in self._running.values() if tenant in (None, one.owner[0])]:
            if running.users or self._running.get(running.owner) is not running:
                continue
            if not stop:
                await self._end(running, transition.EVICTED)
                return True
            if await self._stop(running, transition.EVICTED) or self._running.get(running.owner) is not running:
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        running = self._find(sandbox_id)
        return running is not None and await self._stop(running, transition.UNUSED)

    async def _stop(self, running: RunningSandbox, reason: str) -> bool:
        """Stop a sandbox that is not in use, or remove a dead one; return whether it is stopped."""
        if running.users:
            return False
        try:
            processes = await running.count_processes()
        except SandboxError:
            processes = 0
        if self._running.get(running.owner) is not running or running.users:
            return False  # it was used meanwhile
        if not running.alive:
            await self._end(running, f"{reason}, and it could not be stopped")
            return False
        ended = running.ended_processes + processes
        stopped = StoppedSandbox(running.id, running.spec, running.created_s, ended, self._clock())
        self._stopped[running.owner] = stopped
        also = f"; its background processes ({processes}) ended" if processes else ""
        self._report(running.spec, running.id, "idle_stopped", f"{reason}{also}")
        await self._end(running)
        return True

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        found = [(stopped.since_s, owner) for owner, stopped in self._stopped.items()]
        removed = surplus(found, until_s=self._clock() - timeout_s, limit=limit)
        self._remove_stopped(removed, transition.STOPPED_LIMIT)
        return len(removed)

    def _remove_stopped(self, owners: Sequence[Owner], reason: str) -> None:
        """Remove the stopped sandboxes of owners that have one."""
        for owner in owners:
            if (stopped := self._stopped.pop(owner, None)) is not None:
                self._report(stopped.spec, stopped.id, "removed", reason)

    async def remove(self, sandbox_id: str, reason: str = transition.UNUSED) -> None:
        stopped = self._stopped.items()
        self._remove_stopped([owner for owner, one in stopped if one.id == sandbox_id], reason)
        running = self._find(sandbox_id)
        if running is not None:
            await self._end(running, reason if running.alive else "lost")

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Saved]) -> _Saved | None:
        owner = owner_of(spec)
        with self._workspaces.alone(owner):
            return await self._workspaces.save(owner, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        del size_bytes  # there is no reserve of the machine's disk
        await self.prepare()
        owner = owner_of(spec)
        with self._workspaces.alone(owner):
            while True:
                running = self._running.get(owner)
                if running is not None and running.users:
                    raise SandboxBusy("the thread has calls in progress: wait for them or cancel them")
                if running is not None:
                    self._begin_to_end(running, _RESTORED)
                if owner not in self._ending:
                    break
                await asyncio.wait({self._ending[owner]})
            self._remove_stopped([owner], _RESTORED)
            task = asyncio.get_running_loop().create_task(self._workspaces.replace(owner, give))
            self._block(owner, task)
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        owner = owner_by_name(tenant, thread)
        if owner in self._ending:
            await asyncio.wait({self._ending[owner]})
        if owner in self._running or owner in self._stopped:
            raise SandboxUnavailable("the files of this thread are in use by its sandbox; remove that first")
        return await self._workspaces.delete(owner)

    async def remove_all_of(self, tenant: str) -> int:
        await self._end_all(transition.DELETED, digest(tenant))
        return sum([await self._workspaces.delete(owner) for owner in self._workspaces.owners(tenant)])

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        theirs = digest(tenant)
        owners = {*self._running, *self._ending, *self._stopped}
        containers = sum(owner[0] == theirs for owner in owners)
        return {"volumes": len(self._workspaces.owners(tenant)), "containers": containers}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread; raises after the others are gone if some are in use by sandboxes."""
        self._remove_stopped([*self._stopped], transition.STOPPING)
        busy = {*self._running, *self._ending}
        for owner in self._workspaces.owners():
            if owner not in busy:
                await self._workspaces.delete(owner)
        if busy:
            raise SandboxUnavailable(f"the files of {len(busy)} threads are in use by their sandboxes")

    async def close(self, *, keep_sandboxes: bool = False) -> None:  # noqa: ARG002 - they end with this process
        """End every sandbox, busy ones too; workspaces stay in a root that was given. Closing again is no error."""
        if self._closed:
            return
        self._closed = True
        await self._end_all(transition.STOPPING)
        async with self._preparing:
            self._workspaces.close()
        if self._temporary:
            await asyncio.to_thread(remove_directory, self._root)

    def _is_usable(self, running: RunningSandbox, spec: SandboxSpec) -> bool:
        if not running.alive or running.users:
            return running.alive
        return made_alike(running.spec, spec) and self._overdue_s(running.created_s) is None

    def _overdue_s(self, created_s: float) -> float | None:
        past_s = -1.0 if self._lifetime_s is None else self._clock() - (created_s + self._lifetime_s)
        return past_s if past_s >= 0 else None

    def _handle(self, running: RunningSandbox, spec: SandboxSpec) -> Sandbox:
        overdue_s = partial(self._overdue_s, running.created_s)
        return MemorySandbox(running, spec, on_use_ended=self._note_use, overdue_s=overdue_s)

    def _note_use(self, running: RunningSandbox) -> None:
        running.used_s = self._clock()
        if self._running.get(running.owner) is running:
            self._running[running.owner] = self._running.pop(running.owner)

    async def _end(self, running: RunningSandbox, reason: str = "") -> None:
        # A cancelled caller does not interrupt it.
        await asyncio.shield(self._begin_to_end(running, reason))

    async def _end_all(self, reason: str, tenant: str | None = None) -> None:
        """End the sandboxes of a tenant, by its digest, or of all, stopped ones too."""
        self._remove_stopped([owner for owner in self._stopped if tenant in (None, owner[0])], reason)
        for running in [one for one in self._running.values() if tenant in (None, one.owner[0])]:
            self._begin_to_end(running, reason)
        while self._ending:
            await asyncio.wait(self._ending.values())

    def _begin_to_end(self, running: RunningSandbox, reason: str = "") -> asyncio.Task[None]:
        """End a sandbox in the background; without a reason it does not count as removed."""
        if reason:
            self._report(running.spec, running.id, "removed", reason)
        del self._running[running.owner]
        task = running.end()
        self._block(running.owner, task)
        return task

    def _block(self, owner: Owner, task: asyncio.Task[None]) -> None:
        """Make the owner's next sandbox wait for a task."""
        self._ending[owner] = task
        task.add_done_callback(lambda _: self._ending.pop(owner))

    def _report(self, spec: SandboxSpec, sandbox_id: str, state: State, reason: str) -> None:
        self._on_transition(Transition(*owner_of(spec), sandbox_id, state, reason, spec.thread))

    def _find(self, sandbox_id: str) -> RunningSandbox | None:
        return next((running for running in self._running.values() if running.id == sandbox_id), None)
