"""Attached sandboxes: those that this process uses, or has adopted from an earlier one and not used yet.

What other processes do with a sandbox its daemon knows (sandbox/client/presence.py), and what becomes of its Pod the
mirror: a sandbox whose Pod ended, or whose node was lost, is lost here at once, whatever its connections say.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.client.presence import Presence
from sandbox.client.tls_address import TlsAddress
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.lifetime import Lifetime
from sandbox.errors import DaemonLost, SandboxError
from sandbox.sandbox import LeftSandbox, Owner, SandboxSpec, owner_of
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)


class SharedUses:
    """Satisfies Uses: how all of this process use a sandbox. `used_s` is when they last did, in seconds since 1970."""

    def __init__(self, presence: Presence, clock: Callable[[], float]) -> None:
        self.presence = presence
        self.used_s = clock()
        self.ended_processes = 0
        self._clock = clock
        self._users = 0

    def begin_use(self) -> bool:
        # Asked each time: a retired sandbox takes no further call of a process that is using it, either.
        if self.presence.retired or not (self._users or self.presence.begin_use()):
            return False
        self._users += 1
        return True

    def end_use(self) -> None:
        self._users -= 1
        self.used_s = self._clock()
        if not self._users:
            self.presence.end_use()

    def in_use(self) -> bool:
        return self._users > 0 or self.presence.in_use()

    def take_ended_processes(self) -> int:
        ended, self.ended_processes = self.ended_processes, 0
        return ended


@dataclass
class Attached:
    """A sandbox with this process' channel to it, and its place at the daemon; `sandbox` is None until it is used."""

    owner: Owner
    sandbox_id: str
    address: TlsAddress
    channel: Channel
    uses: SharedUses
    pod_uid: str
    sandbox: ChannelSandbox | None = None

    @property
    def presence(self) -> Presence:
        return self.uses.presence

    @property
    def usable(self) -> ChannelSandbox | None:
        """The sandbox, if it is used here and no process has retired it."""
        alive = self.sandbox is not None and self.sandbox.alive and not self.presence.retired
        return self.sandbox if alive else None

    async def ping(self) -> bool:
        """Return whether its daemon answers within a second, also before it is used."""
        try:
            async with asyncio.timeout(1.0):
                await self.channel.hello(timeout_s=5.0)
        except (SandboxError, TimeoutError):
            return False
        return True

    def lose(self, reason: str) -> None:
        self.channel.mark_lost(DaemonLost(f"the sandbox is lost: {reason}"))
        self.presence.close()
        self.address.cut()

    def close(self) -> None:
        self.presence.close()
        self.channel.close()


class AttachedSandboxes:
    """By their ids."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self.by_id: dict[str, Attached] = {}

    def of(self, owner: Owner) -> ChannelSandbox | None:
        """Return the sandbox of a thread that this process uses, if it lives."""
        return next((one.usable for one in self.by_id.values() if one.owner == owner), None)

    def adopted(self) -> Sequence[LeftSandbox]:
        return [LeftSandbox(id_, *one.owner) for id_, one in self.by_id.items() if one.sandbox is None]

    def use(
        self, one: Attached, record: Record, spec: SandboxSpec, posture: pb.Posture, *, outdated: bool = False
    ) -> ChannelSandbox:
        """Return a sandbox that came up or was found, attached; what ended with its stop this process reports."""
        one.uses.ended_processes += record.ended_processes
        overdue_s = partial(self._lifetime.overdue_s, record)
        engine_record = EngineRecord(one.uses, outdated, one.uses.ended_processes, overdue_s)
        one.sandbox = ChannelSandbox(record.sandbox, spec, one.channel, posture, engine_record)
        assert one.owner == owner_of(spec)  # noqa: S101 - who calls has looked it up by that
        self.by_id[record.sandbox] = one
        return one.sandbox

    def let_go(self, sandbox_id: str) -> Attached | None:
        """Drop a sandbox and close what this process has of it; return it."""
        one = self.by_id.pop(sandbox_id, None)
        if one is not None:
            one.close()
        return one

    def note_pod(self, name: str, pod: Pod | None) -> None:
        """Lose a sandbox whose Pod is gone, or is not what it was."""
        one = self.by_id.get(name)
        if one is None or one.channel.lost is not None:
            return
        reason = "its Pod no longer exists" if pod is None else pod.ended_as(one.pod_uid)
        if reason:
            log.warning("sandbox %s is lost: %s", name, reason)
            one.lose(reason)

    def close(self) -> None:
        """Close all of them. They live on."""
        for one in self.by_id.values():
            one.close()
        self.by_id.clear()
