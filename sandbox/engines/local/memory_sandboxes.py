"""MemorySandboxes: the sandboxes of an in-memory engine, running and stopped, and which are ending."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from sandbox.engines.local.memory_sandbox import RunningSandbox, StoppedSandbox
from sandbox.sandbox import ListedSandbox, Owner, SandboxSpec, digest, owner_of
from sandbox.transition import OnTransition, State, Transition
from sandbox.usage import Usage


class MemorySandboxes:
    """Satisfies Register, and answers the questions of Listing.

    A sandbox is overdue `lifetime_s` after it was created; None sets no limit. `clock` is in seconds since 1970.
    """

    def __init__(self, lifetime_s: float | None, on_transition: OnTransition, clock: Callable[[], float]) -> None:
        self._lifetime_s = lifetime_s
        self._on_transition = on_transition
        self.clock = clock
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

    def overdue_s(self, one: StoppedSandbox) -> float | None:
        """Return for how long a sandbox is past its lifetime; None if it is not."""
        past_s = -1.0 if self._lifetime_s is None else self.clock() - (one.created_s + self._lifetime_s)
        return past_s if past_s >= 0 else None

    def note_use(self, running: RunningSandbox) -> None:
        """Note that a use has just ended."""
        running.since_s = self.clock()
        if self.has_not_ended(running):
            self.running[running.owner] = self.running.pop(running.owner)

    def report(self, one: StoppedSandbox, state: State, reason: str) -> None:
        self._on_transition(Transition(*one.owner, one.id, state, reason, one.spec.thread))

    def remove_stopped(self, owners: Iterable[Owner], reason: str) -> None:
        """Remove the stopped sandboxes of owners that have one."""
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
        """Make the owner's next sandbox wait for a task."""
        self.ending[owner] = task
        task.add_done_callback(lambda _: self.ending.pop(owner))

    async def unblocked(self, owner: Owner) -> bool:
        """Return whether nothing is ending; else wait for it, since what still runs may write to the same files."""
        if owner not in self.ending:
            return True
        await asyncio.wait({self.ending[owner]})
        return False
