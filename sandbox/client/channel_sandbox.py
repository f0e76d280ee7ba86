"""A running sandbox whose daemon is reached through a channel, whatever engine made it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandbox.client import replies
from sandbox.client.channel import Channel
from sandbox.client.health_reply import health_of
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.remote_shell import DEFAULT_SPILL_LIMIT_BYTES, RemoteShell
from sandbox.errors import DaemonLost
from sandbox.health import Health
from sandbox.protocols import FileSystem
from sandbox.sandbox import SandboxSpec
from sandbox.thread_lock import ThreadLock
from sandbox.v1 import channel_pb2 as pb

_PING_TIMEOUT_S = 1.0
# Past the second that it is given: only a daemon that lies or hangs is lost, not one on a host that is busy.
_HEALTH_TIMEOUT_S = 5.0
# So many evicted outputs of the largest size are kept.
_SPILLS = 4


class ChannelSandbox:
    """Satisfies sandbox.sandbox.Sandbox."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        posture: pb.Posture,
        *,
        lock: ThreadLock | None = None,
        outdated: bool = False,
        ended_processes: int = 0,
        overdue_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`lock`, held, tells other processes what this one does with the sandbox; it goes with this object.

        `overdue_s` tells for how long it is past its lifetime, and `ended_processes` is what the lock noted of them.
        """
        self.id = sandbox_id
        self.spec = spec
        self.posture = posture
        self.lock = lock
        self._outdated = outdated
        self._overdue_s = overdue_s
        self._ended_processes = ended_processes
        self.channel = channel
        self._users = 0
        # The environment goes with each command and not with the container: pid 1 has no use for a tenant's secrets.
        # Evicted output leaves at least half of the workspace to the files that the work is about.
        half_bytes = spec.limits.workspace_bytes // 2
        file_limit_bytes = min(DEFAULT_SPILL_LIMIT_BYTES, half_bytes)
        self.shell = RemoteShell(
            channel,
            env=spec.env,
            spill_limit_bytes=file_limit_bytes,
            spill_quota_bytes=min(_SPILLS * file_limit_bytes, half_bytes),
        )
        self.files: FileSystem = RemoteFS(channel, refuse_hard_links=spec.refuse_hard_links)
        self.processes = RemoteProcesses(channel, env=spec.env, file_limit_bytes=file_limit_bytes)

    @property
    def outdated(self) -> bool:
        """Whether it is to be replaced once nobody uses it: it was made in another way, or is past its lifetime."""
        return self._outdated or self.overdue_s is not None

    @property
    def overdue_s(self) -> float | None:
        """For how long it is past its lifetime; None while it is not."""
        return self._overdue_s()

    @property
    def busy(self) -> bool:
        """Whether calls are under way in it, of any process."""
        return self._users > 0 or (self.lock is not None and self.lock.in_use())

    def take_ended_processes(self) -> int:
        """Return how many processes ended with stops that nobody was told of; 0 also while the lock cannot say."""
        if not self._ended_processes or self.lock is None:
            return 0
        ended = self.lock.take_ended_processes()
        if ended is None:
            return 0
        self._ended_processes = 0
        return ended

    @property
    def alive(self) -> bool:
        """Whether its daemon has kept the protocol so far."""
        return self.channel.lost is None

    def borrow(self) -> bool:
        """Begin a use; False when another process removed the sandbox, which is not alive then."""
        if self._users == 0 and self.lock is not None and not self.lock.begin_use():
            self.channel.mark_lost(DaemonLost("another gateway removed the sandbox"))
            return False
        self._users += 1
        return True

    def give_back(self) -> None:
        """End a use."""
        self._users -= 1
        if self._users == 0 and self.lock is not None:
            self.lock.end_use()

    async def health(self, *, count_disk: bool = False) -> Health:
        """Return what the daemon says of itself; raises DaemonLost, also when it says nothing for 5 s."""
        request = pb.Request(health=pb.HealthRequest(count_disk=count_disk))
        reply = await self.channel.ask(request, "health", timeout_s=_HEALTH_TIMEOUT_S)
        try:
            if reply.HasField("failure"):
                raise DaemonLost(f"the sandbox daemon is not well: {replies.plain_text(reply.failure.message)}")
            return health_of(reply.health)
        except DaemonLost as error:
            self.channel.mark_lost(error)
            raise

    async def ping(self) -> bool:
        """Return whether the daemon answers within a second; a slow one is not thereby lost."""
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await self.health()
        except (DaemonLost, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Let go of the channel. The lock is its engine's to drop, for removing needs it."""
        self.channel.close()
