"""Listing: which sandboxes there are, whichever process made them, by the mirrors of records and Pods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sandbox.client.channel import Channel
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import Known, Record
from sandbox.errors import DaemonLost
from sandbox.sandbox import ListedSandbox, Owner, SandboxSpec, digest, owner_of
from sandbox.tls.identity import sandbox_name
from sandbox.transition import State
from sandbox.usage import PIDS_LIMIT, Health, Usage, counted
from sandbox.v1 import channel_pb2 as pb

_LIVES = ("creating", "running")


@dataclass(frozen=True)
class Listing:
    """Answers Register and Listing."""

    parts: Parts

    def has(self, spec: SandboxSpec) -> bool:
        known = self._known(owner_of(spec))
        return known is not None and known.record.state in _LIVES

    def stopped(self, spec: SandboxSpec) -> str | None:
        known = self._known(owner_of(spec))
        return known.record.sandbox if known is not None and known.record.state == "stopped" else None

    def stopped_count(self) -> int:
        return sum(known.record.state == "stopped" for known in [*self.parts.leases.items.values()])

    def owners(self, tenant: str | None = None) -> Sequence[Owner]:
        """Return the owner of each living sandbox, or of those of a tenant, a digest; the longest unused first."""
        found = [known for known in self._all(tenant) if known.record.state in _LIVES]
        return [known.owner for known in sorted(found, key=self._used_s)]

    def stopped_owners(self) -> list[tuple[float, Owner]]:
        """Return the owners of stopped sandboxes, after since when they are, the longest first."""
        found = [(known.record.since_s, known.owner) for known in self._all(None) if known.record.state == "stopped"]
        return sorted(found)

    async def listed(self, tenant: str) -> Sequence[ListedSandbox]:
        await self.parts.prepared()
        found = [self.shown(known.record, at_work=known.at_work) for known in self._all(digest(tenant))]
        return sorted((one for one in found if one.id), key=lambda one: one.id)

    def shown(self, record: Record, *, at_work: bool = False) -> ListedSandbox:
        """Return a sandbox as lists show it."""
        if record.state == "stopped":
            return record.listed("idle_stopped", record.since_s)
        pod = self.parts.pods.items.get(record.sandbox)
        if record.state != "running":
            return record.listed("creating")
        state, reason = _state(pod, record.pod)
        if state == "failed":
            return record.listed("failed", None, "" if at_work else reason)
        mine = self.parts.attached.by_id.get(record.sandbox)
        if mine is None:
            return record.listed("running", record.since_s)
        return record.listed("running", None if mine.uses.in_use() else mine.uses.used_s)

    async def usage(self, sandbox: ListedSandbox) -> Usage | None:
        """Return what a sandbox's daemon says; None where it is gone, or does not answer."""
        mine = self.parts.attached.by_id.get(sandbox.id)
        try:
            if mine is not None and mine.sandbox is not None:
                return _usage(await mine.sandbox.health(), mine.sandbox.posture)
            found = next((known for known in self._all(None) if known.record.sandbox == sandbox.id), None)
            return None if found is None else await self._asked(found)
        except (DaemonLost, OSError):
            return None

    async def owned(self) -> Mapping[str, bool]:
        """Return whether each sandbox of this instance runs, by its id."""
        await self.parts.prepared()
        records = (known.record for known in self._all(None))
        return {one.sandbox: self.shown(one).state == "running" for one in records if one.has_sandbox}

    async def _asked(self, known: Known) -> Usage | None:
        record, pod = known.record, self.parts.pods.items.get(known.record.sandbox)
        if record.state != "running" or pod is None or not pod.address:
            return None
        name = sandbox_name(self.parts.site.instance, record.sandbox, known.owner, record.epoch)
        channel = Channel(self.parts.address(pod.address, name))
        try:
            # Its spec is not known, and nothing that is asked here depends on it.
            spec = SandboxSpec("", record.thread, record.image, runtime=record.runtime)
            hello = await channel.hello(timeout_s=5.0)
            return _usage(await ChannelSandbox(record.sandbox, spec, channel, hello.posture).health(), hello.posture)
        finally:
            channel.close()

    def _known(self, owner: Owner) -> Known | None:
        return self.parts.leases.items.get(self.parts.site.lease_name(owner))

    def _all(self, tenant: str | None) -> Iterator[Known]:
        return (known for known in [*self.parts.leases.items.values()] if tenant in (None, known.owner[0]))

    def _used_s(self, known: Known) -> float:
        mine = self.parts.attached.by_id.get(known.record.sandbox)
        return max(known.record.since_s, 0.0 if mine is None else mine.uses.used_s)


def _state(pod: Pod | None, uid: str) -> tuple[State, str]:
    reason = "its Pod no longer exists" if pod is None else pod.ended_as(uid)
    return ("failed", reason) if reason else ("running", "")


def _usage(health: Health, posture: pb.Posture) -> Usage:
    return Usage(
        memory_bytes=counted(health.memory_bytes),
        memory_limit_bytes=counted(posture.memory_limit_bytes),
        pids=counted(health.pids, PIDS_LIMIT),
        pids_limit=counted(posture.pids_limit, PIDS_LIMIT),
    )
