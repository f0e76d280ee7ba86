"""AttachedSandboxes: the sandboxes that this process uses, or has adopted from an earlier one and not used yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.engines.docker.parts import Lifetime
from sandbox.owner import Owner, owner_of
from sandbox.sandbox import LeftSandbox, SandboxSpec
from sandbox.thread_lock import Note, ThreadLock
from sandbox.v1 import channel_pb2 as pb


@dataclass(frozen=True)
class Attached:
    """A sandbox with this process' channel to it, and its thread's lock; `sandbox` is None until it is used."""

    owner: Owner
    channel: Channel
    lock: ThreadLock
    sandbox: ChannelSandbox | None = None

    def close(self) -> None:
        """Close the channel, and drop the lock."""
        self.channel.close()
        self.lock.close()


class AttachedSandboxes:
    """Attached sandboxes, by their ids."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._by_id: dict[str, Attached] = {}

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._by_id

    def get(self, sandbox_id: str) -> Attached | None:
        """Return a sandbox; None for one that this process does not have."""
        return self._by_id.get(sandbox_id)

    def pop(self, sandbox_id: str) -> Attached | None:
        """Return a sandbox, which the caller has to close, and forget it."""
        return self._by_id.pop(sandbox_id, None)

    def adopt(self, sandbox_id: str, owner: Owner, channel: Channel, lock: ThreadLock) -> None:
        """Attach a sandbox that an earlier process left; its lock is behind its gate, which opens."""
        self._by_id[sandbox_id] = Attached(owner, channel, lock)
        lock.hold()
        lock.leave()

    def adopted(self) -> Sequence[LeftSandbox]:
        """Return the sandboxes that were adopted and not used yet."""
        return [LeftSandbox(id_, *one.owner) for id_, one in self._by_id.items() if one.sandbox is None]

    def use(
        self,
        note: Note,
        spec: SandboxSpec,
        channel: Channel,
        posture: pb.Posture,
        lock: ThreadLock,
        *,
        outdated: bool = False,
    ) -> ChannelSandbox:
        """Return a sandbox that came up or was found, attached; its lock is behind its gate, which opens."""
        record = EngineRecord(lock, outdated, note.ended_processes, partial(self._lifetime.overdue_s, note))
        sandbox = ChannelSandbox(note.sandbox, spec, channel, posture, record)
        lock.hold()
        lock.leave()
        self.let_go(note.sandbox)
        self._by_id[note.sandbox] = Attached(owner_of(spec), channel, lock, sandbox)
        return sandbox

    def let_go(self, sandbox_id: str) -> None:
        """Drop a sandbox, but for the channel of an adopted one, which its next use has."""
        attached = self._by_id.pop(sandbox_id, None)
        if attached is not None:
            attached.lock.close()
            if attached.sandbox is not None:
                attached.channel.close()

    def close(self) -> None:
        """Close all of them. They live on."""
        for attached in self._by_id.values():
            attached.close()
        self._by_id.clear()
