"""The sandboxes of an in-memory engine: directories, and programs of this machine that use them as their workspaces."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.daemon.supervisor.landlock import landlock_version
from sandbox.engines.lifetime import Lifetime
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.sandbox import ListedSandbox, Owner, SandboxSpec, digest, owner_of
from sandbox.transition import OnTransition, State, Transition
from sandbox.usage import Usage
from sandbox.v1 import channel_pb2 as pb


@dataclass(eq=False)
class StoppedSandbox:
    """What the next start of a stopped sandbox has to know.

    `ended_processes` ended with its stops and were not reported yet. `since_s` is when it was stopped, or last used.
    """

    id: str
    spec: SandboxSpec
    created_s: float
    since_s: float
    ended_processes: int = 0

    @property
    def owner(self) -> Owner:
        return owner_of(self.spec)

    def listed(self) -> ListedSandbox:
        return self._shown("idle_stopped", self.since_s)

    def _shown(self, state: State, since_s: float | None, reason: str = "") -> ListedSandbox:
        made = (self.id, self.spec.thread, self.spec.image, self.spec.runtime, self.created_s)
        return ListedSandbox(*made, state, since_s, reason)


@dataclass(eq=False, kw_only=True)
class RunningSandbox(StoppedSandbox):
    """What all MemorySandbox objects of one sandbox share: its daemon, and how many use it since when."""

    process: LocalProcess
    users: int = 0
    starting: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.channel = self.process.channel
        # Its first step runs before that of end(), so whatever it starts is ended.
        self.starting = asyncio.get_running_loop().create_task(self.process.start())

    @property
    def alive(self) -> bool:
        return self.channel.lost is None

    def listed(self) -> ListedSandbox:
        if not self.alive:
            return self._shown("failed", None, f"it was lost: {self.channel.lost}")
        return self._shown("running", None if self.users else self.since_s)

    def end(self) -> asyncio.Task[None]:
        """Refuse every later call, and end what runs in the background; the task is done when nothing is left."""
        self.channel.close()
        return asyncio.get_running_loop().create_task(asyncio.to_thread(self.process.end))


class MemorySandbox(ChannelSandbox):
    """A sandbox for callers with one spec."""

    def __init__(self, running: RunningSandbox, spec: SandboxSpec, sandboxes: "MemorySandboxes") -> None:
        # Only file rules are enforced, and programs have this process' own user.
        posture = pb.Posture(
            tool_uid=os.geteuid(),
            daemon_uid=os.geteuid(),
            kernel=os.uname().release,
            landlock_version=max(0, landlock_version()),
        )
        outdated = PoolKind.of(running.spec) != PoolKind.of(spec)
        record = EngineRecord(outdated=outdated, overdue_s=partial(sandboxes.lifetime.overdue_s, running))
        super().__init__(running.id, spec, running.channel, posture, record)
        self._running = running
        self._sandboxes = sandboxes

    @property
    def busy(self) -> bool:
        return self._running.users > 0

    def take_ended_processes(self) -> int:
        ended, self._running.ended_processes = self._running.ended_processes, 0
        return ended

    def borrow(self) -> bool:
        if not self._running.alive:
            return False
        self._running.users += 1
        return True

    def give_back(self) -> None:
        self._running.users -= 1
        self._sandboxes.note_use(self._running)


class MemorySandboxes:
    """Satisfies Register, and answers the questions of Listing."""

    def __init__(self, lifetime: Lifetime, on_transition: OnTransition) -> None:
        self.lifetime, self.clock = lifetime, lifetime.clock
        self._on_transition = on_transition
        self.running: dict[Owner, RunningSandbox] = {}  # least recently used first
        self.at_rest: dict[Owner, StoppedSandbox] = {}  # longest stopped first
        # What the next sandbox of a thread waits for: the end of its predecessor, or the replacement of its files.
        self.ending: dict[Owner, asyncio.Task[None]] = {}

    def has(self, spec: SandboxSpec) -> bool:
        return owner_of(spec) in self.running

    def stopped(self, spec: SandboxSpec) -> str | None:
        found = self.at_rest.get(owner_of(spec))
        return None if found is None else found.id

    def stopped_count(self) -> int:
        return len(self.at_rest)

    def owners(self) -> Sequence[Owner]:
        return list(self.running)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        theirs = digest(tenant)
        found = [one.listed() for one in self._all() if one.owner[0] == theirs]
        return sorted(found, key=lambda sandbox: sandbox.id)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        return None if self.find(sandbox.id) is None else Usage()  # nothing is known without a cgroup

    async def owned(self) -> Mapping[str, bool]:
        return {one.id: isinstance(one, RunningSandbox) and one.alive for one in self._all()}

    def _all(self) -> list[StoppedSandbox]:
        return [*self.running.values(), *self.at_rest.values()]

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        return next((running for running in self.running.values() if running.id == sandbox_id), None)

    def has_not_ended(self, running: RunningSandbox) -> bool:
        return self.running.get(running.owner) is running

    def note_use(self, running: RunningSandbox) -> None:
        running.since_s = self.clock()
        if self.has_not_ended(running):
            self.running[running.owner] = self.running.pop(running.owner)

    def report(self, one: StoppedSandbox, state: State, reason: str) -> None:
        self._on_transition(Transition(*one.owner, one.id, state, reason, one.spec.thread))

    def remove_stopped(self, owners: Iterable[Owner], reason: str) -> None:
        for owner in owners:
            if (stopped := self.at_rest.pop(owner, None)) is not None:
                self.report(stopped, "removed", reason)

    def begin_to_end(self, running: RunningSandbox, reason: str = "") -> asyncio.Task[None]:
        """End a sandbox in the background; without a reason it does not count as removed."""
        if reason:
            self.report(running, "removed", reason)
        del self.running[running.owner]
        task = running.end()
        self.block(running.owner, task)
        return task

    async def end(self, running: RunningSandbox, reason: str = "") -> None:
        """End a sandbox. A cancelled caller does not interrupt it."""
        await asyncio.shield(self.begin_to_end(running, reason))

    async def end_all(self, reason: str, tenant: str | None = None) -> None:
        """End the sandboxes of a tenant, by its digest, or of all, stopped ones too."""
        self.remove_stopped([owner for owner in self.at_rest if tenant in (None, owner[0])], reason)
        for running in [one for one in self.running.values() if tenant in (None, one.owner[0])]:
            self.begin_to_end(running, reason)
        while self.ending:
            await asyncio.wait(self.ending.values())

    def block(self, owner: Owner, task: asyncio.Task[None]) -> None:
        self.ending[owner] = task
        task.add_done_callback(lambda _: self.ending.pop(owner))

    async def unblocked(self, owner: Owner) -> bool:
        """Return whether nothing is ending; else wait for it, since what still runs may write to the same files."""
        if owner not in self.ending:
            return True
        await asyncio.wait({self.ending[owner]})
        return False
