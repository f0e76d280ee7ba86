"""One sandbox of the in-memory engine: a directory, and programs of this machine that use it as their workspace."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.daemon.supervisor.landlock import landlock_version
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.sandbox import ListedSandbox, Owner, SandboxSpec, owner_of
from sandbox.transition import State
from sandbox.v1 import channel_pb2 as pb


def made_alike(one: SandboxSpec, other: SandboxSpec) -> bool:
    """Return whether two specs have the same sandbox; environment and file rules go with each call."""
    return PoolKind.of(one) == PoolKind.of(other)


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

    async def count_processes(self) -> int:
        """Return how many background processes and strays run."""
        found = await RemoteProcesses(self.channel).list()
        return sum(process.running for process in found.processes) + found.strays

    def end(self) -> asyncio.Task[None]:
        """Refuse every later call, and end what runs in the background; the task is done when nothing is left."""
        self.channel.close()
        return asyncio.get_running_loop().create_task(asyncio.to_thread(self.process.end))


class MemorySandbox(ChannelSandbox):
    """A sandbox for callers with one spec. `on_use_ended` is called after each use."""

    def __init__(
        self,
        running: RunningSandbox,
        spec: SandboxSpec,
        *,
        on_use_ended: Callable[[RunningSandbox], None],
        overdue_s: Callable[[], float | None],
    ) -> None:
        # Only file rules are enforced, and programs have this process' own user.
        posture = pb.Posture(
            tool_uid=os.geteuid(),
            daemon_uid=os.geteuid(),
            kernel=os.uname().release,
            landlock_version=max(0, landlock_version()),
        )
        record = EngineRecord(outdated=not made_alike(running.spec, spec), overdue_s=overdue_s)
        super().__init__(running.id, spec, running.channel, posture, record)
        self._running = running
        self._on_use_ended = on_use_ended

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
        self._on_use_ended(self._running)
