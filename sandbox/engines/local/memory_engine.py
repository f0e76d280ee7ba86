"""MemoryEngine: sandboxes without Docker, each a daemon that is a plain process. IT CONTAINS NOTHING.

Every command runs as a program of this machine, with this process' user, files and network. It is for tests, examples
and development against a gateway without Docker; never run unreviewed code in it. The configuration selects it by name
only (`sandbox.engine: memory`), and the gateway then listens on loopback alone.

    engine = MemoryEngine()                      # everything in a temporary directory that close() removes
    engine = MemoryEngine(root=directory)        # workspaces stay there, for the next process

It keeps the Engine protocol except for isolation: tests/conformance runs on every engine. The differences:

    - image, runtime and limits are recorded and not enforced, and the posture has only Landlock: file rules hold;
    - file calls see /workspace and /tmp, which are directories of the sandbox, and nothing else. Commands see this
      machine's paths: they run in the workspace and should use relative names; $TMPDIR is the /tmp of file calls;
    - a sandbox that was stopped for being idle keeps its files and its id only;
    - sandboxes end with this process, however it ends (local_daemon.py): close() keeps none;
    - one process at a time uses a root, and locks it.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sandbox import transition
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.engine import surplus
from sandbox.engines.lifetime import Lifetime
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.local.local_workspaces import LocalWorkspaces, remove_directory
from sandbox.engines.local.memory_sandboxes import MemorySandbox, MemorySandboxes, RunningSandbox, StoppedSandbox
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import SandboxBusy, SandboxError, SandboxUnavailable
from sandbox.sandbox import LeftSandbox, ListedSandbox, Sandbox, SandboxSpec, digest, owner_by_name, owner_of

_Saved = TypeVar("_Saved")


@dataclass(frozen=True)
class MemoryCreation:
    """Satisfies Creator, and finds running sandboxes."""

    sandboxes: MemorySandboxes
    workspaces: LocalWorkspaces
    make_process: Callable[[Path, Path, int], LocalProcess]

    async def create(self, spec: SandboxSpec) -> Sandbox:
        await self.workspaces.prepare()
        owner = owner_of(spec)
        while True:
            running = self.sandboxes.running.get(owner)
            if running is not None and running.alive and (running.users or self._fits(running, spec)):
                break
            if running is not None:
                self.sandboxes.begin_to_end(running, transition.MADE_OTHERWISE if running.alive else "lost")
            if await self.sandboxes.unblocked(owner):
                running = self._start(spec)
                break
        await asyncio.shield(running.starting)
        return MemorySandbox(running, spec, self.sandboxes)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        running = self.sandboxes.running.get(owner_of(spec))
        return None if running is None or not running.alive else MemorySandbox(running, spec, self.sandboxes)

    def _start(self, spec: SandboxSpec) -> RunningSandbox:
        # Awaits nothing, so no second sandbox is made meanwhile and a caller that gives up leaves nothing behind.
        sandboxes, owner = self.sandboxes, owner_of(spec)
        was = sandboxes.at_rest.get(owner)
        again = was is not None and self._fits(was, spec)
        if was is not None and again:
            sandbox_id, created_s = was.id, was.created_s
            del sandboxes.at_rest[owner]
        else:
            sandboxes.remove_stopped([owner], transition.MADE_OTHERWISE)
            sandbox_id, created_s = f"{owner[1][:12]}-{secrets.token_hex(4)}", sandboxes.clock()
        ended = 0 if was is None else was.ended_processes
        made = StoppedSandbox(sandbox_id, spec, created_s, sandboxes.clock(), ended)
        if not again:
            sandboxes.report(made, "creating", f"image {spec.image}, runtime {spec.runtime}")
        try:
            directories = self.workspaces.make(owner, sandbox_id)
        except SandboxError as error:
            sandboxes.report(made, "removed" if again else "failed", str(error))
            raise
        process = self.make_process(*directories, self.workspaces.lock)
        running = sandboxes.running[owner] = RunningSandbox(**vars(made), process=process)
        running.starting.add_done_callback(lambda _: self._note_start(running, again=again))
        return running

    def _note_start(self, running: RunningSandbox, *, again: bool) -> None:
        """Report that a sandbox came up, or end one that did not, whether or not its creator still waits."""
        error = None if running.starting.cancelled() else running.starting.exception()
        if not self.sandboxes.has_not_ended(running):
            return
        if error is None:
            self.sandboxes.report(running, "running", transition.STARTED_AGAIN if again else "started")
        else:
            self.sandboxes.report(running, "removed" if again else "failed", str(error))
            self.sandboxes.begin_to_end(running)

    def _fits(self, one: StoppedSandbox, spec: SandboxSpec) -> bool:
        # Environment and file rules go with each call.
        return PoolKind.of(one.spec) == PoolKind.of(spec) and self.sandboxes.lifetime.overdue_s(one) is None


@dataclass(frozen=True)
class MemoryEndings:
    """Satisfies Ending, and the methods of Leasing that stop or remove sandboxes."""

    sandboxes: MemorySandboxes

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running = self.sandboxes.running.get(owner)
        if running is not None and not await self._stop(running, transition.ASKED):
            if self.sandboxes.has_not_ended(running):
                raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then stop it")
            return replace(running.listed(), state="removed")
        stopped = self.sandboxes.at_rest.get(owner)
        return None if stopped is None else stopped.listed()

    async def remove_of(self, tenant: str, thread: str) -> ListedSandbox | None:
        owner = owner_by_name(tenant, thread)
        running, stopped = self.sandboxes.running.get(owner), self.sandboxes.at_rest.get(owner)
        if running is not None and running.users:
            raise SandboxBusy("the sandbox has calls in progress: wait for them or cancel them, then remove it")
        self.sandboxes.remove_stopped([owner], transition.ASKED)
        if running is None:
            return None if stopped is None else stopped.listed()
        listed = running.listed()
        await self.sandboxes.end(running, transition.ASKED)
        return listed

    async def end_calls(self, tenant: str, thread: str, *, overdue: bool = False) -> bool:
        running = self.sandboxes.running.get(owner_by_name(tenant, thread))
        if running is None or not running.users or (overdue and self.sandboxes.lifetime.overdue_s(running) is None):
            return False
        await self.sandboxes.end(running, transition.OVERDUE if overdue else transition.CALLS_LOST)
        return True

    async def remove_idle(self, tenant: str | None, *, stop: bool = False) -> bool:
        for running in [one for one in self.sandboxes.running.values() if tenant in (None, one.owner[0])]:
            if running.users or not self.sandboxes.has_not_ended(running):
                continue
            if not stop:
                await self.sandboxes.end(running, transition.EVICTED)
                return True
            if await self._stop(running, transition.EVICTED) or not self.sandboxes.has_not_ended(running):
                return True
        return False

    async def stop_idle(self, sandbox_id: str) -> bool:
        running = self.sandboxes.find(sandbox_id)
        return running is not None and await self._stop(running, transition.UNUSED)

    async def _stop(self, running: RunningSandbox, reason: str) -> bool:
        """Stop a sandbox that is not in use, or remove a dead one; return whether it is stopped."""
        sandboxes = self.sandboxes
        if running.users:
            return False
        try:
            found = await RemoteProcesses(running.channel).list()
            processes = sum(process.running for process in found.processes) + found.strays
        except SandboxError:
            processes = 0
        if not sandboxes.has_not_ended(running) or running.users:
            return False  # it was used meanwhile
        if not running.alive:
            await sandboxes.end(running, f"{reason}, and it could not be stopped")
            return False
        known, ended = (running.id, running.spec, running.created_s), running.ended_processes + processes
        sandboxes.at_rest[running.owner] = StoppedSandbox(*known, sandboxes.clock(), ended)
        also = f"; its background processes ({processes}) ended" if processes else ""
        sandboxes.report(running, "idle_stopped", f"{reason}{also}")
        await sandboxes.end(running)
        return True

    async def trim_stopped(self, *, timeout_s: float, limit: int) -> int:
        found = [(stopped.since_s, owner) for owner, stopped in self.sandboxes.at_rest.items()]
        removed = surplus(found, until_s=self.sandboxes.clock() - timeout_s, limit=limit)
        self.sandboxes.remove_stopped(removed, transition.STOPPED_LIMIT)
        return len(removed)

    async def remove(self, sandbox_id: str, reason: str = transition.UNUSED) -> None:
        stopped = self.sandboxes.at_rest.items()
        self.sandboxes.remove_stopped([owner for owner, one in stopped if one.id == sandbox_id], reason)
        running = self.sandboxes.find(sandbox_id)
        if running is not None:
            await self.sandboxes.end(running, reason if running.alive else "lost")


@dataclass(frozen=True)
class MemoryFiles:
    """Satisfies Workspaces, and removes files."""

    sandboxes: MemorySandboxes
    workspaces: LocalWorkspaces

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Saved]) -> _Saved | None:
        owner = owner_of(spec)
        with self.workspaces.alone(owner):
            return await self.workspaces.save(owner, take)

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        del size_bytes  # there is no reserve of the machine's disk
        await self.workspaces.prepare()
        owner, reason = owner_of(spec), "its files were replaced"
        with self.workspaces.alone(owner):
            unblocked = False
            while not unblocked:
                running = self.sandboxes.running.get(owner)
                if running is not None and running.users:
                    raise SandboxBusy("the thread has calls in progress: wait for them or cancel them")
                if running is not None:
                    self.sandboxes.begin_to_end(running, reason)
                unblocked = await self.sandboxes.unblocked(owner)
            self.sandboxes.remove_stopped([owner], reason)
            task = asyncio.get_running_loop().create_task(self.workspaces.replace(owner, give))
            self.sandboxes.block(owner, task)
            await task

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        owner = owner_by_name(tenant, thread)
        await self.sandboxes.unblocked(owner)
        if owner in self.sandboxes.running or owner in self.sandboxes.at_rest:
            raise SandboxUnavailable("the files of this thread are in use by its sandbox; remove that first")
        return await self.workspaces.delete(owner)

    async def remove_all_of(self, tenant: str) -> int:
        await self.sandboxes.end_all(transition.DELETED, digest(tenant))
        return sum([await self.workspaces.delete(owner) for owner in self.workspaces.owners(tenant)])

    async def left_of(self, tenant: str) -> Mapping[str, int]:
        theirs = digest(tenant)
        owners = {*self.sandboxes.running, *self.sandboxes.ending, *self.sandboxes.at_rest}
        containers = sum(owner[0] == theirs for owner in owners)
        return {"volumes": len(self.workspaces.owners(tenant)), "containers": containers}

    async def remove_workspaces(self) -> None:
        """Remove the files of every thread; raises after the others are gone if some are in use by sandboxes."""
        self.sandboxes.remove_stopped([*self.sandboxes.at_rest], transition.STOPPING)
        busy = {*self.sandboxes.running, *self.sandboxes.ending}
        for owner in self.workspaces.owners():
            if owner not in busy:
                await self.workspaces.delete(owner)
        if busy:
            raise SandboxUnavailable(f"the files of {len(busy)} threads are in use by their sandboxes")


class MemoryEngine:
    """Satisfies sandbox.engine.Engine. `on_transition` receives each transition. `clock` is in seconds since 1970.

    A sandbox older than `lifetime_s` is replaced once it is unused; None sets no limit. `make_process` makes the
    processes of its sandboxes.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        lifetime_s: float | None = None,
        on_transition: transition.OnTransition = transition.ignored,
        clock: Callable[[], float] = time.time,
        make_process: Callable[[Path, Path, int], LocalProcess] = LocalProcess,
    ) -> None:
        self._temporary = root is None
        self._root = Path(tempfile.mkdtemp(prefix="airlock-memory-")) if root is None else root
        self._workspaces = workspaces = LocalWorkspaces(self._root)
        self._sandboxes = sandboxes = MemorySandboxes(Lifetime(lifetime_s, clock), on_transition)
        creation = MemoryCreation(sandboxes, workspaces, make_process)
        endings, files = MemoryEndings(sandboxes), MemoryFiles(sandboxes, workspaces)

        # The protocols' methods, each by the part that does it. Creator and Leasing:
        self.create, self.find = creation.create, creation.find
        self.stop_idle, self.remove, self.remove_idle = endings.stop_idle, endings.remove, endings.remove_idle
        self.trim_stopped, self.remove_workspaces = endings.trim_stopped, files.remove_workspaces
        # Register and Listing:
        self.has, self.stopped, self.stopped_count = sandboxes.has, sandboxes.stopped, sandboxes.stopped_count
        self.owners, self.listed = sandboxes.owners, sandboxes.listed
        self.usage, self.owned = sandboxes.usage, sandboxes.owned
        # Ending, Workspaces and Removal:
        self.stop, self.remove_of, self.end_calls = endings.stop, endings.remove_of, endings.end_calls
        self.save_workspace, self.replace_workspace = files.save_workspace, files.replace_workspace
        self.remove_workspace = files.remove_workspace
        self.remove_all_of, self.left_of = files.remove_all_of, files.left_of
        # The engine itself:
        self.id, self.prepare = workspaces.id, workspaces.prepare

    async def ping(self) -> None: ...

    async def reconcile(self) -> Sequence[LeftSandbox]:
        await self.prepare()
        return []  # no sandbox outlives its process

    async def close(self, *, keep_sandboxes: bool = False) -> None:  # noqa: ARG002 - they end with this process
        """End every sandbox, busy ones too; workspaces stay in a root that was given. Closing again is no error."""
        if self._workspaces.closing:
            return
        self._workspaces.closing = True
        await self._sandboxes.end_all(transition.STOPPING)
        await self._workspaces.close()
        if self._temporary:
            await asyncio.to_thread(remove_directory, self._root)
