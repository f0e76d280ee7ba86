"""MemoryCreation: how a thread gets its sandbox: one that runs, one that was stopped, or a new one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.local.local_workspaces import LocalWorkspaces
from sandbox.engines.local.memory_sandbox import MemorySandbox, RunningSandbox, StoppedSandbox, made_alike
from sandbox.engines.local.memory_sandboxes import MemorySandboxes
from sandbox.errors import SandboxError
from sandbox.sandbox import Sandbox, SandboxSpec, owner_of
from sandbox.transition import MADE_OTHERWISE, STARTED_AGAIN


@dataclass(frozen=True)
class MemoryCreation:
    """Satisfies Creator, and finds running sandboxes."""

    sandboxes: MemorySandboxes
    workspaces: LocalWorkspaces
    new_suffix: Callable[[], str]

    async def create(self, spec: SandboxSpec) -> Sandbox:
        await self.workspaces.prepare()
        owner = owner_of(spec)
        while True:
            running = self.sandboxes.running.get(owner)
            if running is not None and running.alive and (running.users or self._fits(running, spec)):
                break
            if running is not None:
                self.sandboxes.begin_to_end(running, MADE_OTHERWISE if running.alive else "lost")
            if await self.sandboxes.unblocked(owner):
                running = self._start(spec)
                break
        await asyncio.shield(running.starting)
        return self._handle(running, spec)

    async def find(self, spec: SandboxSpec) -> Sandbox | None:
        running = self.sandboxes.running.get(owner_of(spec))
        return None if running is None or not running.alive else self._handle(running, spec)

    def _start(self, spec: SandboxSpec) -> RunningSandbox:
        # Awaits nothing, so no second sandbox is made meanwhile and a caller that gives up leaves nothing behind.
        sandboxes, owner = self.sandboxes, owner_of(spec)
        was = sandboxes.at_rest.get(owner)
        again = was is not None and self._fits(was, spec)
        if was is not None and again:
            sandbox_id, created_s = was.id, was.created_s
            del sandboxes.at_rest[owner]
        else:
            sandboxes.remove_stopped([owner], MADE_OTHERWISE)
            sandbox_id, created_s = f"{owner[1][:12]}-{self.new_suffix()}", sandboxes.clock()
        ended = 0 if was is None else was.ended_processes
        made = StoppedSandbox(sandbox_id, spec, created_s, sandboxes.clock(), ended)
        if not again:
            sandboxes.report(made, "creating", f"image {spec.image}, runtime {spec.runtime}")
        try:
            directories = self.workspaces.make(owner, sandbox_id)
        except SandboxError as error:
            sandboxes.report(made, "removed" if again else "failed", str(error))
            raise
        process = LocalProcess(*directories, lock=self.workspaces.lock)
        running = sandboxes.running[owner] = RunningSandbox(**vars(made), process=process)
        running.starting.add_done_callback(lambda _: self._note_start(running, again=again))
        return running

    def _note_start(self, running: RunningSandbox, *, again: bool) -> None:
        """Report that a sandbox came up, or end one that did not, whether or not its creator still waits."""
        error = None if running.starting.cancelled() else running.starting.exception()
        if not self.sandboxes.has_not_ended(running):
            return
        if error is None:
            self.sandboxes.report(running, "running", STARTED_AGAIN if again else "started")
        else:
            self.sandboxes.report(running, "removed" if again else "failed", str(error))
            self.sandboxes.begin_to_end(running)

    def _fits(self, one: StoppedSandbox, spec: SandboxSpec) -> bool:
        return made_alike(one.spec, spec) and self.sandboxes.overdue_s(one) is None

    def _handle(self, running: RunningSandbox, spec: SandboxSpec) -> Sandbox:
        overdue_s = partial(self.sandboxes.overdue_s, running)
        return MemorySandbox(running, spec, on_use_ended=self.sandboxes.note_use, overdue_s=overdue_s)
