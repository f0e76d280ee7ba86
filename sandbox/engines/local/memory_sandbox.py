"""A sandbox of the in-memory engine: a directory, and programs of this machine that have it as their workspace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.local.local_process import LocalProcess
from sandbox.engines.local.local_workspace import remove_directory
from sandbox.engines.pooled_sandbox import SpareKind
from sandbox.owner import owner_of
from sandbox.sandbox import ListedSandbox, SandboxSpec
from sandbox.v1 import channel_pb2 as pb


def made_alike(one: SandboxSpec, other: SandboxSpec) -> bool:
    """Return whether two specs have the same sandbox; environment and file rules go with each call."""
    return (one.image, one.runtime, one.limits) == (other.image, other.runtime, other.limits)


@dataclass(frozen=True)
class MemorySpare:
    """Satisfies sandbox.engines.pooled_sandbox.Spare, and is not there before it is claimed."""

    id: str
    kind: SpareKind
    alive: bool = True

    async def ping(self) -> bool:
        """Return that nothing can have happened to it."""
        return True


class MemoryPlace:
    """What a sandbox is, whatever specs it is lent by: its daemon, its temporary directories, how many use it.

    `root` has its files, `directory` is for the daemon's socket, and `lock` is kept open by the daemon.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        root: Path,
        directory: Path,
        *,
        lock: int,
        created_s: float,
        used_s: float,
        ended_processes: int = 0,
    ) -> None:
        self.id = sandbox_id
        self.created_s = created_s
        self.used_s = used_s
        self.ended_processes = ended_processes
        self.owner = owner_of(spec)
        self.users = 0
        self.spec = spec
        self._temporary = root / "tmp", directory
        self._process = LocalProcess(root, directory, lock=lock)
        self.channel = self._process.channel
        # Its first step is before that of end(), so whatever it starts is ended.
        self.starting: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._process.start())

    @property
    def alive(self) -> bool:
        """Whether it may be used on."""
        return self.channel.lost is None

    def shown(self) -> ListedSandbox:
        """Return it as lists show it."""
        made = (self.id, self.spec.thread, self.spec.image, self.spec.runtime, self.created_s)
        if not self.alive:
            return ListedSandbox(*made, "failed", reason=f"it was lost: {self.channel.lost}")
        return ListedSandbox(*made, "running", None if self.users else self.used_s)

    async def running(self) -> int:
        """Return how many background processes run, and what commands left behind."""
        found = await RemoteProcesses(self.channel).list()
        return sum(process.running for process in found.processes) + found.strays

    def end(self) -> asyncio.Task[None]:
        """Refuse every later call at once, and begin to end what runs; the task is done when nothing is left."""
        self.channel.close()
        return asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        await asyncio.to_thread(self._process.end)
        for directory in self._temporary:
            await asyncio.to_thread(remove_directory, directory)


class MemorySandbox(ChannelSandbox):
    """A place, lent by a spec. `used` is told of each end of a use, `overdue_s` as ChannelSandbox has it."""

    def __init__(
        self,
        place: MemoryPlace,
        spec: SandboxSpec,
        *,
        used: Callable[[MemoryPlace], None],
        overdue_s: Callable[[], float | None],
    ) -> None:
        # The kernel was asked for nothing, so it says nothing but whose rights programs have: this process' own.
        posture = pb.Posture(tool_uid=os.geteuid(), daemon_uid=os.geteuid(), kernel=os.uname().release)
        record = EngineRecord(outdated=not made_alike(place.spec, spec), overdue_s=overdue_s)
        super().__init__(place.id, spec, place.channel, posture, record)
        self._place = place
        self._used = used

    @property
    def busy(self) -> bool:
        """Whether calls are under way in it."""
        return self._place.users > 0

    def take_ended_processes(self) -> int:
        """Return how many processes ended with stops that nobody was told of."""
        ended, self._place.ended_processes = self._place.ended_processes, 0
        return ended

    def borrow(self) -> bool:
        """Begin a use; False when the sandbox was removed."""
        if not self._place.alive:
            return False
        self._place.users += 1
        return True

    def give_back(self) -> None:
        """End a use."""
        self._place.users -= 1
        self._used(self._place)
