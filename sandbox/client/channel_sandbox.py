"""A running sandbox whose daemon is reached through a channel, whatever engine made it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from sandbox.client import replies
from sandbox.client.channel import Channel
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_network import RemoteNetwork
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.remote_shell import DEFAULT_SPILL_LIMIT_BYTES, RemoteShell
from sandbox.errors import DaemonLost, SandboxRetired
from sandbox.protocols import FileSystem
from sandbox.sandbox import SandboxSpec
from sandbox.usage import Health
from sandbox.v1 import channel_pb2 as pb


class Uses(Protocol):
    """Shows other processes what this one does with a sandbox, and the other way round: a ThreadLock, or a Presence."""

    def begin_use(self) -> bool:
        """Note that calls are under way; False when the sandbox was or is being removed."""

    def end_use(self) -> None: ...

    def in_use(self) -> bool:
        """Return whether calls of any process are under way."""

    def take_ended_processes(self) -> int | None:
        """Return how many processes ended and were not reported yet, and note that they are; None: ask again later."""


@dataclass(frozen=True)
class EngineRecord:
    """What its engine records of a sandbox.

    `uses` shows other processes what this one does with the sandbox; the engine closes it. `outdated` says that the
    sandbox was made from a different spec. `overdue_s` returns how long it is past its lifetime.
    """

    uses: Uses | None = None
    outdated: bool = False
    ended_processes: int = 0
    overdue_s: Callable[[], float | None] = lambda: None


class ChannelSandbox:
    """Satisfies sandbox.sandbox.Sandbox."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        posture: pb.Posture,
        record: EngineRecord | None = None,
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.posture = posture
        self.channel = channel
        self._record = record or EngineRecord()
        self._uses = self._record.uses
        self._ended_processes = self._record.ended_processes
        self._users = 0
        # The environment travels with each command, not with the container: pid 1 has no use for a tenant's secrets.
        # Evicted output leaves at least half of the workspace to the tenant's files.
        half_bytes = spec.limits.workspace_bytes // 2
        file_limit_bytes = min(DEFAULT_SPILL_LIMIT_BYTES, half_bytes)
        self.shell = RemoteShell(
            channel,
            env=spec.env,
            spill_limit_bytes=file_limit_bytes,
            # How many evicted outputs of the largest size are kept.
            spill_quota_bytes=min(4 * file_limit_bytes, half_bytes),
        )
        self.files: FileSystem = RemoteFS(channel, refuse_hard_links=spec.refuse_hard_links)
        self.processes = RemoteProcesses(channel, env=spec.env, file_limit_bytes=file_limit_bytes)
        self.network = RemoteNetwork(channel)

    @property
    def outdated(self) -> bool:
        return self._record.outdated or self.overdue_s is not None

    @property
    def overdue_s(self) -> float | None:
        return self._record.overdue_s()

    @property
    def busy(self) -> bool:
        return self._users > 0 or (self._uses is not None and self._uses.in_use())

    def take_ended_processes(self) -> int:
        """Return how many processes ended with stops, once; 0 also while that is not known."""
        ended = self._uses.take_ended_processes() if self._ended_processes and self._uses is not None else None
        if ended is None:
            return 0
        self._ended_processes = 0
        return ended

    @property
    def alive(self) -> bool:
        return self.channel.lost is None

    def borrow(self) -> bool:
        if self._users == 0 and self._uses is not None and not self._uses.begin_use():
            self.channel.mark_lost(SandboxRetired("another gateway removed the sandbox"))
            return False
        self._users += 1
        return True

    def give_back(self) -> None:
        self._users -= 1
        if self._users == 0 and self._uses is not None:
            self._uses.end_use()

    async def health(self, *, count_disk: bool = False) -> Health:
        """Return what the daemon reports; raises DaemonLost, also when it does not answer for 5 s."""

        def fail(failure: pb.Failure) -> NoReturn:
            raise DaemonLost(f"the sandbox daemon is not well: {replies.plain_text(failure.message)}")

        request = pb.Request(health=pb.HealthRequest(count_disk=count_disk))
        # Longer than a ping: a daemon is lost when it lies or hangs, not when its host is busy.
        return await self.channel.query(request, "health", replies.health, timeout_s=5.0, fail=fail)

    async def ping(self) -> bool:
        try:
            async with asyncio.timeout(1.0):
                await self.health()
        except (DaemonLost, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close the channel. The engine closes what shows its uses."""
        self.channel.close()
