"""A sandbox of the in-memory engine: a directory, and programs of this machine that have it as their workspace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.engines.local.local_daemon import LocalChannel, LocalDaemon
from sandbox.engines.local.local_fs import LocalFS
from sandbox.engines.local.local_workspace import remove_directory
from sandbox.engines.pooled_sandbox import SpareKind
from sandbox.errors import DaemonLost
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
    """What a sandbox is, whatever specs it is lent by: its programs, its temporary directory, how many use it."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        workspace: Path,
        temporary: Path,
        *,
        token: str,
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
        self.workspace = workspace
        self.spec = spec
        self._temporary = temporary
        self._daemon = LocalDaemon(workspace, temporary, token)
        self.channel = LocalChannel(self._daemon)

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
        await self._daemon.close()
        await asyncio.to_thread(remove_directory, self._temporary)


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
        super().__init__(
            place.id,
            spec,
            place.channel,
            posture,
            outdated=not made_alike(place.spec, spec),
            overdue_s=overdue_s,
        )
        self.files = _PlaceFS(place, refuse_hard_links=spec.refuse_hard_links)
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


class _PlaceFS(LocalFS):
    """The files of a place, for as long as it lives."""

    def __init__(self, place: MemoryPlace, *, refuse_hard_links: bool) -> None:
        super().__init__(place.workspace, refuse_hard_links=refuse_hard_links)
        self._place = place

    def _real(self, path: str) -> str:
        if self._place.channel.lost is not None:
            raise DaemonLost(str(self._place.channel.lost))
        return super()._real(path)
